/*
 * tcp_auth.h: how the two ends of a data connection prove that they know the job's secret. No sockets here.
 *
 *     dialling rank                          listening rank
 *     HELLO: who, whom, which channel, a
 *                                     ->
 *                                     <-     b
 *     HMAC("dial", HELLO, b)          ->
 *                                     <-     HMAC("listen", HELLO, b)
 *
 * HMAC is HMAC-SHA256 under the secret; a and b are fresh 32-byte nonces. So a recorded conversation is
 * worth nothing (b, and for the dialling side a, are new), and a proof cannot be sent back to its maker or
 * used for another rank, channel or direction, as all of that is signed. The listener proves nothing to who has
 * not proved himself. Proofs are compared in constant time.
 */
#ifndef ZT_COLL_TCP_AUTH_H
#define ZT_COLL_TCP_AUTH_H

#include "base/compat.h"

#include "base/err.h"
#include "base/mesh.h"

enum { TCP_NONCE_BYTES = 32, TCP_PROOF_BYTES = 32, TCP_SECRET_BYTES = 32 };

struct tcp_hello {
    char magic[8]; /* TCP_MAGIC: protocol and version */
    int32_t from, to;
    int32_t channel; /* tcp_net.h */
    int32_t n_nodes;
    int32_t mesh[ZT_N_AXES];
    uint8_t nonce[TCP_NONCE_BYTES];
};

#define TCP_MAGIC "ztcoll1\n"

enum tcp_role { TCP_DIALS, TCP_LISTENS };

int zt_tcp_nonce(uint8_t nonce[TCP_NONCE_BYTES], struct zt_err *err) ZT_MUST_CHECK;

void zt_tcp_prove(const uint8_t secret[TCP_SECRET_BYTES], enum tcp_role role,
                  const struct tcp_hello *h, const uint8_t nonce[TCP_NONCE_BYTES],
                  uint8_t proof[TCP_PROOF_BYTES]);

bool zt_tcp_proves(const uint8_t secret[TCP_SECRET_BYTES], enum tcp_role role,
                   const struct tcp_hello *h, const uint8_t nonce[TCP_NONCE_BYTES],
                   const uint8_t proof[TCP_PROOF_BYTES]);

#endif
