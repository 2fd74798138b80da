/*
 * bcrypt.h: bcrypt_pbkdf, by which OpenSSH turns a passphrase into the key that its private keys are encrypted
 * with. Source: Provos and Mazieres, "A Future-Adaptable Password Scheme" (1999), for bcrypt; PROTOCOL.key of
 * OpenSSH and bcrypt_pbkdf(3) of OpenBSD for the rest. OpenSSL has Blowfish, but not with a salt.
 */
#ifndef ZT_LAUNCH_BCRYPT_H
#define ZT_LAUNCH_BCRYPT_H

#include "base/err.h"

/*
 * n bytes of key, n at most 1024, from a passphrase and a salt that are not empty. Takes about 10 ms a round
 * and 32 bytes. ZT_EUNSUPPORTED: the arguments are out of range; of rounds there are 1024 at most.
 */
int zt_bcrypt_pbkdf(const char *pass, size_t pass_len, const uint8_t *salt, size_t salt_len,
                    uint32_t rounds, uint8_t *key, size_t n, struct zt_err *err) ZT_MUST_CHECK;

#endif
