#include "coll/tcp_auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

int zt_tcp_nonce(uint8_t nonce[TCP_NONCE_BYTES], struct zt_err *err)
{
    if (getrandom(nonce, TCP_NONCE_BYTES, 0) != TCP_NONCE_BYTES)
        return zt_err_errno(err, ZT_ESYS, "getrandom");
    return ZT_OK;
}

void zt_tcp_prove(const uint8_t secret[TCP_SECRET_BYTES], enum tcp_role role,
                  const struct tcp_hello *h, const uint8_t nonce[TCP_NONCE_BYTES],
                  uint8_t proof[TCP_PROOF_BYTES])
{
    struct {
        char role[8];
        struct tcp_hello hello;
        uint8_t nonce[TCP_NONCE_BYTES];
    } text = {.hello = *h};
    _Static_assert(sizeof text == 8 + sizeof(struct tcp_hello) + TCP_NONCE_BYTES,
                   "what is signed has no holes");
    unsigned len = 0;
    memcpy(text.role, role == TCP_DIALS ? "dials \n" : "listens", sizeof text.role);
    memcpy(text.nonce, nonce, TCP_NONCE_BYTES);
    const unsigned char *done = HMAC(EVP_sha256(), secret, TCP_SECRET_BYTES,
                                     (const unsigned char *)&text, sizeof text, proof, &len);
    ZT_ASSERT(done && len == TCP_PROOF_BYTES);
}

bool zt_tcp_proves(const uint8_t secret[TCP_SECRET_BYTES], enum tcp_role role,
                   const struct tcp_hello *h, const uint8_t nonce[TCP_NONCE_BYTES],
                   const uint8_t proof[TCP_PROOF_BYTES])
{
    uint8_t right[TCP_PROOF_BYTES];
    zt_tcp_prove(secret, role, h, nonce, right);
    bool same = CRYPTO_memcmp(right, proof, TCP_PROOF_BYTES) == 0;
    OPENSSL_cleanse(right, sizeof right);
    return same;
}
