#include "harness.h"

#include <openssl/evp.h>
#include <unistd.h>

#include "base/io.h"
#include "launch/bcrypt.h"
#include "launch/ssh_key.h"

/* Keys are made by ssh-keygen and openssl, in a folder of the test, and signatures checked by OpenSSL. */
static char dir[64];

static int sh(const char *fmt, ...) ZT_PRINTF(1, 2);

static int sh(const char *fmt, ...)
{
    char cmd[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = snprintf(cmd, sizeof cmd, "exec 2>&1 >%s/out; cd %s && { ", dir, dir);
    n += vsnprintf(cmd + n, sizeof cmd - (size_t)n, fmt, ap);
    va_end(ap);
    snprintf(cmd + n, sizeof cmd - (size_t)n, "; }");
    return system(cmd);
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/zt-ssh-key-XXXXXX");
    return mkdtemp(dir) != NULL;
}

static void teardown(void)
{
    if (sh("rm -rf %s", dir))
        printf("%s is left\n", dir);
}

#define RIG                                                                                        \
    if (system("command -v ssh-keygen >/dev/null"))                                                \
        SKIP("ssh-keygen is not installed");                                                       \
    CHECK(setup())

/* The public key that ssh-keygen wrote is the one that was read. */
static bool is_pub(const struct zt_ssh_key *key, const char *name)
{
    struct zt_str text = {0};
    struct zt_err err;
    char *encoded = calloc(key->blob_len * 2 + 8, 1);
    if (zt_read_file(at(name), 1 << 16, &text, &err))
        return false;
    EVP_EncodeBlock((unsigned char *)encoded, key->blob, (int)key->blob_len);
    bool same = strstr(text.buf, encoded) != NULL;
    free(encoded);
    zt_str_release(&text);
    return same;
}

/* Our signature of some bytes is one, by `ssh-keygen -Y verify` in its own envelope; of RSA keys in that way. */
static bool signs_as(const struct zt_ssh_key *key, enum zt_ssh_rsa rsa, const char *pub)
{
    static const char ns[] = "test", text[] = "what is signed";
    struct zt_str data = {0}, inner = {0}, envelope = {0}, signature = {0}, armour = {0};
    unsigned char digest[64];
    unsigned n = 0;
    uint8_t *sig = NULL;
    size_t sig_len = 0, type_len;
    struct zt_err err;
    const char *type = zt_ssh_key_type(key->blob, key->blob_len, &type_len);
    if (zt_ssh_key_is_rsa(key->blob, key->blob_len)) {
        type = zt_ssh_rsa_name(rsa);
        type_len = strlen(type);
    }
    EVP_Digest(text, strlen(text), digest, &n, EVP_sha512(), NULL);
    zt_str_add(&data, "SSHSIG", 6);
    zt_ssh_put_string(&data, ns, strlen(ns));
    zt_ssh_put_string(&data, "", 0);
    zt_ssh_put_string(&data, "sha512", 6);
    zt_ssh_put_string(&data, digest, n);
    if (zt_ssh_key_sign(key, rsa, (uint8_t *)data.buf, data.len, &sig, &sig_len, &err))
        return false;
    zt_ssh_put_string(&inner, type, type_len);
    zt_ssh_put_string(&inner, sig, sig_len);
    zt_str_add(&envelope, "SSHSIG\0\0\0\1", 10);
    zt_ssh_put_string(&envelope, key->blob, key->blob_len);
    zt_ssh_put_string(&envelope, ns, strlen(ns));
    zt_ssh_put_string(&envelope, "", 0);
    zt_ssh_put_string(&envelope, "sha512", 6);
    zt_ssh_put_string(&envelope, inner.buf, inner.len);
    char *encoded = calloc(envelope.len * 2 + 8, 1);
    EVP_EncodeBlock((unsigned char *)encoded, (unsigned char *)envelope.buf, (int)envelope.len);
    zt_str_printf(&armour, "-----BEGIN SSH SIGNATURE-----\n%s\n-----END SSH SIGNATURE-----\n",
                  encoded);
    bool ok =
        zt_write_file_atomic(at("sig"), armour.buf, armour.len, &err) == 0 &&
        sh("{ printf 'me '; cat %s; } >allowed", pub) == 0 &&
        sh("printf '%s' | ssh-keygen -q -Y verify -f allowed -I me -n test -s sig", text) == 0;
    free(encoded);
    free(sig);
    zt_str_release(&data);
    zt_str_release(&inner);
    zt_str_release(&envelope);
    zt_str_release(&signature);
    zt_str_release(&armour);
    return ok;
}

static bool signs(const struct zt_ssh_key *key, const char *pub)
{
    return signs_as(key, ZT_SSH_RSA_SHA512, pub) && signs_as(key, ZT_SSH_RSA_SHA256, pub);
}

TEST(bcrypt_gives_what_others_have_published)
{
    /* From the tests of OpenBSD and of the bcrypt package of Python. */
    static const struct {
        const char *pass, *salt;
        uint32_t rounds;
        uint8_t key[32];
    } cases[] = {
        {"password", "salt", 4, {0x5b, 0xbf, 0x0c, 0xc2, 0x93, 0x58, 0x7f, 0x1c, 0x36, 0x35, 0x55,
                                 0x5c, 0x27, 0x79, 0x65, 0x98, 0xd4, 0x7e, 0x57, 0x90, 0x71, 0xbf,
                                 0x42, 0x7e, 0x9d, 0x8f, 0xbe, 0x84, 0x2a, 0xba, 0x34, 0xd9}},
    };
    struct zt_err err;
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        uint8_t key[32];
        CHECK_OK(zt_bcrypt_pbkdf(cases[i].pass, strlen(cases[i].pass),
                                 (const uint8_t *)cases[i].salt, strlen(cases[i].salt),
                                 cases[i].rounds, key, sizeof key, &err),
                 err);
        CHECK(memcmp(key, cases[i].key, sizeof key) == 0);
    }
    uint8_t key[32];
    CHECK_INT(zt_bcrypt_pbkdf("", 0, (const uint8_t *)"salt", 4, 4, key, 32, &err),
              ZT_EUNSUPPORTED);
    CHECK_INT(zt_bcrypt_pbkdf("a", 1, (const uint8_t *)"salt", 4, 0, key, 32, &err),
              ZT_EUNSUPPORTED);
    CHECK_INT(zt_bcrypt_pbkdf("a", 1, (const uint8_t *)"salt", 4, 1025, key, 32, &err),
              ZT_EUNSUPPORTED);
    CHECK_INT(zt_bcrypt_pbkdf("a", 1, (const uint8_t *)"salt", 4, 4, key, 0, &err),
              ZT_EUNSUPPORTED);
}

TEST(keys_as_ssh_keygen_makes_them_sign)
{
    static const char *const kinds[] = {"-t ed25519",      "-t ecdsa -b 256", "-t ecdsa -b 384",
                                        "-t ecdsa -b 521", "-t ecdsa -m PEM", "-t ecdsa -m PKCS8",
                                        "-t rsa -b 2048",  "-t rsa -b 3072",  "-t rsa -m PEM"};
    RIG;
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds); i++) {
        struct zt_ssh_key key;
        struct zt_err err;
        CHECK_INT(sh("rm -f k k.pub; ssh-keygen -q %s -N '' -f k", kinds[i]), 0);
        CHECK_OK(zt_ssh_key_read(at("k"), &key, &err), err);
        CHECK(key.pkey && is_pub(&key, "k.pub"));
        for (int k = 0; k < 8; k++) /* numbers with and without a first bit that is set */
            if (!signs(&key, "k.pub"))
                FAIL("signature %d of %s", k, kinds[i]);
        zt_ssh_key_release(&key);
    }
    teardown();
}

TEST(keys_with_a_passphrase_are_unlocked_once)
{
    static const char *const kinds[] = {"-t ed25519",
                                        "-t ed25519 -Z aes256-cbc -a 3",
                                        "-t ed25519 -Z aes128-ctr -a 3",
                                        "-t ecdsa -b 521 -a 3",
                                        "-t ed25519 -Z aes256-gcm@openssh.com -a 3",
                                        "-t ecdsa -m PEM",
                                        "-t ecdsa -m PKCS8",
                                        "-t rsa -a 3",
                                        "-t rsa -m PEM"};
    RIG;
    for (size_t i = 0; i < ZT_ARRAY_LEN(kinds); i++) {
        struct zt_ssh_key key;
        struct zt_err err;
        CHECK_INT(sh("rm -f k k.pub; ssh-keygen -q %s -N 'open sesame' -f k", kinds[i]), 0);
        CHECK_OK(zt_ssh_key_read(at("k"), &key, &err), err);
        CHECK(!key.pkey && is_pub(&key, "k.pub"));
        CHECK_INT(zt_ssh_key_unlock(&key, "open barley", &err), ZT_EINPUT);
        CHECK_INT(zt_ssh_key_unlock(&key, "", &err), ZT_EINPUT);
        CHECK(!key.pkey);
        CHECK_OK(zt_ssh_key_unlock(&key, "open sesame", &err), err);
        CHECK(key.pkey && is_pub(&key, "k.pub") && !key.text.buf);
        CHECK(signs(&key, "k.pub"));
        CHECK_OK(zt_ssh_key_unlock(&key, "whatever", &err), err); /* it is open */
        zt_ssh_key_release(&key);
    }
    teardown();
}

/* Whoever offers the key of the file k.pub has made room for its signatures. */
TEST(a_pub_file_of_another_key)
{
    RIG;
    struct zt_ssh_key key;
    struct zt_err err;
    CHECK_INT(sh("ssh-keygen -q -t ecdsa -b 521 -m PEM -N secret -f k; rm k.pub;"
                 "ssh-keygen -q -t ed25519 -N '' -f l; mv l.pub k.pub"),
              0);
    CHECK_OK(zt_ssh_key_read(at("k"), &key, &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(zt_ssh_key_unlock(&key, "secret", &err), ZT_EUNSUPPORTED);
        CHECK(strstr(err.msg, "k.pub is of another key than "));
        CHECK(!key.pkey && is_pub(&key, "k.pub"));
    }
    zt_ssh_key_release(&key);
    teardown();
}

TEST(keys_that_only_the_client_can_use)
{
    static const struct {
        const char *make, *why;
    } cases[] = {
        {"openssl genpkey -quiet -algorithm ed448 -out k; chmod 600 k",
         "not ed25519, ecdsa or RSA"},
        {"ssh-keygen -q -t ed25519 -Z chacha20-poly1305@openssh.com -a 3 -N secret -f k",
         "encrypted with chacha20-poly1305@openssh.com"},
        {"ssh-keygen -q -t ecdsa -m PEM -N secret -f k; rm k.pub", "has a passphrase and no"},
        {"ssh-keygen -q -t ed25519 -N '' -f k; chmod 644 k", "others may read"},
        {"echo hello >k; chmod 600 k", "cannot be read"},
        {": >k; chmod 600 k", "is empty"},
        {"ssh-keygen -q -t ed25519 -N '' -f k; head -n 3 k >l; mv l k; chmod 600 k", "damaged"},
    };
    RIG;
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_ssh_key key;
        struct zt_err err = {0};
        CHECK_INT(sh("rm -f k k.pub; %s", cases[i].make), 0);
        int rc = zt_ssh_key_read(at("k"), &key, &err);
        if (rc != ZT_EUNSUPPORTED || !strstr(err.msg, cases[i].why))
            FAIL("%s: %d, %s", cases[i].make, rc, err.msg);
    }
    struct zt_ssh_key key;
    struct zt_err err;
    CHECK_INT(zt_ssh_key_read(at("nosuch"), &key, &err), ZT_EINPUT);
    teardown();
}

/* Whatever is cut off or changed, a file of a key is read or refused. */
TEST(damaged_keys_do_no_harm)
{
    struct zt_str whole = {0};
    struct zt_err err;
    int n_read = 0;
    RIG;
    CHECK_INT(sh("ssh-keygen -q -t ecdsa -N '' -f k"), 0);
    CHECK_OK(zt_read_file(at("k"), 1 << 16, &whole, &err), err);
    for (size_t i = 0; i < whole.len; i += 7) {
        struct zt_ssh_key key;
        struct zt_str text = {0};
        zt_str_add(&text, whole.buf, i % 2 ? i : whole.len);
        if (i % 2 == 0)
            text.buf[i] = text.buf[i] == 'Q' ? 'z' : 'Q';
        CHECK_OK(zt_write_file_atomic(at("d"), text.buf, text.len, &err), err);
        CHECK_INT(sh("chmod 600 d"), 0);
        if (zt_ssh_key_read(at("d"), &key, &err) == 0) {
            n_read++;
            zt_ssh_key_release(&key);
        } else {
            CHECK(err.code == ZT_EUNSUPPORTED || err.code == ZT_EINPUT);
        }
        zt_str_release(&text);
    }
    CHECK(n_read < 60); /* in the comment and the padding alone */
    zt_str_release(&whole);
    teardown();
}

TEST_MAIN()
