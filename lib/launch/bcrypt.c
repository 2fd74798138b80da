#include "launch/bcrypt.h"

#include <openssl/bn.h>
#include <openssl/sha.h>

#include "base/arena.h"

enum {
    N_SUBKEYS = 18,
    N_WORDS = N_SUBKEYS + 4 * 256,
    HASH_BYTES = 32,
    MAX_KEY_BYTES = 1024,
    MAX_ROUNDS =
        1024, /* seconds, in which the caller does nothing else; ssh-keygen takes 16 or 24 */
};

/* Blowfish: 18 subkeys, then 4 boxes of 256 words. */
struct blowfish {
    uint32_t w[N_WORDS];
};

/* ---- the initial state: pi ---- */

/* sum += sign * factor * atan(1 / x), in units of 2^-bits; false: out of memory. */
static bool add_atan(BIGNUM *sum, unsigned x, unsigned factor, bool minus, int bits)
{
    BIGNUM *power = BN_new(), *term = BN_new();
    bool ok = power && term && BN_set_bit(power, bits) && BN_mul_word(power, factor) &&
              BN_div_word(power, x) != (BN_ULONG)-1;
    for (unsigned k = 1; ok && !BN_is_zero(power); k += 2, minus = !minus) {
        ok = BN_copy(term, power) && BN_div_word(term, k) != (BN_ULONG)-1 &&
             (minus ? BN_sub(sum, sum, term) : BN_add(sum, sum, term)) &&
             BN_div_word(power, x * x) != (BN_ULONG)-1;
    }
    BN_free(power);
    BN_free(term);
    return ok;
}

/*
 * Blowfish begins with the digits of pi behind the point, which are sooner computed than copied without a
 * slip: pi = 16 atan(1/5) - 4 atan(1/239) (Machin).
 */
static bool init_pi(struct blowfish *b)
{
    enum { PI_BITS = 32 * N_WORDS, GUARD_BITS = 64, BITS = PI_BITS + GUARD_BITS };
    uint8_t bytes[4 * N_WORDS];
    BIGNUM *pi = BN_new(); /* 0 */
    bool ok = pi && add_atan(pi, 5, 16, false, BITS) && add_atan(pi, 239, 4, true, BITS) &&
              BN_mask_bits(pi, BITS) && BN_rshift(pi, pi, GUARD_BITS) &&
              BN_bn2binpad(pi, bytes, sizeof bytes) == (int)sizeof bytes;
    for (int i = 0; ok && i < N_WORDS; i++)
        b->w[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 |
                  (uint32_t)bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    BN_free(pi);
    return ok;
}

/* ---- Blowfish with a salt ---- */

static uint32_t feistel(const struct blowfish *b, uint32_t x)
{
    const uint32_t *s = b->w + N_SUBKEYS;
    return ((s[x >> 24] + s[256 + (x >> 16 & 255)]) ^ s[512 + (x >> 8 & 255)]) + s[768 + (x & 255)];
}

static void encipher(const struct blowfish *b, uint32_t lr[2])
{
    uint32_t l = lr[0] ^ b->w[0], r = lr[1];
    for (int i = 1; i <= 16; i += 2) {
        r ^= feistel(b, l) ^ b->w[i];
        l ^= feistel(b, r) ^ b->w[i + 1];
    }
    lr[0] = r ^ b->w[17];
    lr[1] = l;
}

/* The next word of bytes that repeat. */
static uint32_t next_word(const uint8_t *p, size_t n, size_t *at)
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++, *at = (*at + 1) % n)
        w = w << 8 | p[*at];
    return w;
}

/* ExpandKey of the paper; salt NULL: a salt of zeros. */
static void expand(struct blowfish *b, const uint8_t *salt, const uint8_t *key)
{
    uint32_t lr[2] = {0, 0};
    size_t at = 0;
    for (int i = 0; i < N_SUBKEYS; i++)
        b->w[i] ^= next_word(key, SHA512_DIGEST_LENGTH, &at);
    at = 0;
    for (int i = 0; i < N_WORDS; i += 2) {
        for (int k = 0; salt && k < 2; k++)
            lr[k] ^= next_word(salt, SHA512_DIGEST_LENGTH, &at);
        encipher(b, lr);
        b->w[i] = lr[0];
        b->w[i + 1] = lr[1];
    }
}

/* bcrypt of 64 bytes with a salt of 64, at cost 6. */
static void hash(const struct blowfish *pi, const uint8_t *pass, const uint8_t *salt,
                 uint8_t out[HASH_BYTES])
{
    static const uint8_t text[] = "OxychromaticBlowfishSwatDynamite";
    struct blowfish b = *pi;
    size_t at = 0;
    expand(&b, salt, pass);
    for (int i = 0; i < 64; i++) {
        expand(&b, NULL, salt);
        expand(&b, NULL, pass);
    }
    for (int i = 0; i < HASH_BYTES; i += 8) {
        uint32_t lr[2];
        lr[0] = next_word(text, HASH_BYTES, &at);
        lr[1] = next_word(text, HASH_BYTES, &at);
        for (int k = 0; k < 64; k++)
            encipher(&b, lr);
        for (int k = 0; k < 8; k++) /* little endian, unlike all else here */
            out[i + k] = (uint8_t)(lr[k / 4] >> 8 * (k % 4));
    }
    explicit_bzero(&b, sizeof b);
}

/* ---- PBKDF2 over it ---- */

/* One block of the key: the sum of `rounds` hashes. */
static void derive(const struct blowfish *pi, const uint8_t *pass, const uint8_t *salt,
                   size_t salt_len, uint32_t rounds, uint8_t out[HASH_BYTES])
{
    uint8_t digest[SHA512_DIGEST_LENGTH], step[HASH_BYTES];
    SHA512(salt, salt_len, digest);
    hash(pi, pass, digest, step);
    memcpy(out, step, HASH_BYTES);
    for (uint32_t i = 1; i < rounds; i++) {
        SHA512(step, sizeof step, digest);
        hash(pi, pass, digest, step);
        for (int k = 0; k < HASH_BYTES; k++)
            out[k] ^= step[k];
    }
    explicit_bzero(step, sizeof step);
}

int zt_bcrypt_pbkdf(const char *pass, size_t pass_len, const uint8_t *salt, size_t salt_len,
                    uint32_t rounds, uint8_t *key, size_t n, struct zt_err *err)
{
    if (!pass_len || !salt_len || salt_len > 1 << 20 || !n || n > MAX_KEY_BYTES || !rounds ||
        rounds > MAX_ROUNDS)
        return zt_err_set(err, ZT_EUNSUPPORTED, "bcrypt: %zu bytes of salt, %u rounds", salt_len,
                          rounds);
    uint8_t digest[SHA512_DIGEST_LENGTH], block[HASH_BYTES];
    struct blowfish *pi = zt_xcalloc(1, sizeof *pi);
    uint8_t *counted = zt_xcalloc(salt_len + 4, 1);
    int rc = init_pi(pi) ? 0 : zt_err_set(err, ZT_ENOMEM, "bcrypt");
    const size_t n_blocks = (n + HASH_BYTES - 1) / HASH_BYTES;
    memcpy(counted, salt, salt_len);
    SHA512((const uint8_t *)pass, pass_len, digest);
    /* Bytes of a block are not one after the other in the key: whoever guesses has to compute all. */
    for (size_t i = 0; !rc && i < n_blocks; i++) {
        counted[salt_len + 2] = (uint8_t)((i + 1) >> 8);
        counted[salt_len + 3] = (uint8_t)(i + 1);
        derive(pi, digest, counted, salt_len + 4, rounds, block);
        for (size_t k = 0; k < HASH_BYTES && k * n_blocks + i < n; k++)
            key[k * n_blocks + i] = block[k];
    }
    explicit_bzero(digest, sizeof digest);
    explicit_bzero(block, sizeof block);
    free(counted);
    free(pi);
    return rc;
}
