#include "launch/ssh_key.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/io.h"
#include "launch/bcrypt.h"

enum {
    FILE_BYTES = 256 << 10,
    ED25519_BYTES = 32,
    CHECK_BYTES = 8, /* twice the same number, before the private half */
    MPINT_BYTES = OPENSSL_RSA_MAX_MODULUS_BITS / 8,
};

/* ---- bytes ---- */

uint32_t zt_ssh_get_u32(struct zt_ssh_bytes *b)
{
    if (b->left < 4) {
        b->bad = true;
        b->left = 0;
        return 0;
    }
    const uint8_t *p = b->p;
    b->p += 4;
    b->left -= 4;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

const uint8_t *zt_ssh_get_string(struct zt_ssh_bytes *b, size_t *len)
{
    *len = zt_ssh_get_u32(b);
    if (b->bad || *len > b->left) {
        b->bad = true;
        b->left = *len = 0;
        return NULL;
    }
    const uint8_t *p = b->p;
    b->p += *len;
    b->left -= *len;
    return p;
}

void zt_ssh_put_u32(struct zt_str *out, uint32_t v)
{
    const uint8_t b[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
    zt_str_add(out, b, sizeof b);
}

void zt_ssh_put_string(struct zt_str *out, const void *bytes, size_t n)
{
    zt_ssh_put_u32(out, (uint32_t)n);
    zt_str_add(out, bytes, n);
}

/* A number that is not negative, of at most MPINT_BYTES: a zero byte stands before a first bit that is set. */
static void put_mpint(struct zt_str *out, const BIGNUM *n)
{
    uint8_t bytes[1 + MPINT_BYTES] = {0};
    int len = BN_bn2bin(n, bytes + 1);
    bool zero = len > 0 && bytes[1] & 0x80;
    zt_ssh_put_string(out, bytes + !zero, (size_t)len + zero);
}

/* Release, and leave nothing of it in memory. */
static void wipe(struct zt_str *s)
{
    if (s->buf)
        explicit_bzero(s->buf, s->cap);
    zt_str_release(s);
}

/* ---- types ---- */

struct curve {
    const char *type, *name, *group;
    const char *digest;
    int bytes;
};

static const struct curve curves[] = {
    {"ecdsa-sha2-nistp256", "nistp256", "prime256v1", "SHA256", 32},
    {"ecdsa-sha2-nistp384", "nistp384", "secp384r1", "SHA384", 48},
    {"ecdsa-sha2-nistp521", "nistp521", "secp521r1", "SHA512", 66},
};

static const char ed25519[] = "ssh-ed25519", ssh_rsa[] = "ssh-rsa";

static bool is_text(const uint8_t *p, size_t len, const char *text)
{
    return p && strlen(text) == len && memcmp(p, text, len) == 0;
}

const char *zt_ssh_key_type(const uint8_t *blob, size_t len, size_t *type_len)
{
    struct zt_ssh_bytes b = {blob, len, false};
    const uint8_t *type = zt_ssh_get_string(&b, type_len);
    return type ? (const char *)type : "";
}

static const struct curve *curve_of(const uint8_t *blob, size_t len)
{
    size_t n;
    const char *type = zt_ssh_key_type(blob, len, &n);
    for (size_t i = 0; i < ZT_ARRAY_LEN(curves); i++)
        if (is_text((const uint8_t *)type, n, curves[i].type))
            return &curves[i];
    return NULL;
}

bool zt_ssh_key_is_rsa(const uint8_t *blob, size_t len)
{
    size_t n;
    const char *type = zt_ssh_key_type(blob, len, &n);
    return is_text((const uint8_t *)type, n, ssh_rsa);
}

bool zt_ssh_key_type_served(const uint8_t *blob, size_t len)
{
    size_t n;
    const char *type = zt_ssh_key_type(blob, len, &n);
    return is_text((const uint8_t *)type, n, ed25519) ||
           is_text((const uint8_t *)type, n, ssh_rsa) || curve_of(blob, len);
}

const char *zt_ssh_rsa_name(enum zt_ssh_rsa rsa)
{
    return rsa == ZT_SSH_RSA_SHA512   ? "rsa-sha2-512"
           : rsa == ZT_SSH_RSA_SHA256 ? "rsa-sha2-256"
                                      : NULL;
}

static int check_type(const struct zt_ssh_key *key, struct zt_err *err)
{
    size_t n;
    const char *type = zt_ssh_key_type(key->blob, key->blob_len, &n);
    return zt_ssh_key_type_served(key->blob, key->blob_len)
               ? 0
               : zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is of type %.*s", key->path, (int)n,
                            type);
}

static void set_blob(struct zt_ssh_key *key, const void *bytes, size_t n)
{
    free(key->blob);
    key->blob = zt_xcalloc(n + 1, 1);
    memcpy(key->blob, bytes, n);
    key->blob_len = n;
}

/* ---- the private half, in OpenSSH's format ---- */

/* A pair of keys of that kind; NULL when its parts do not make one. */
static EVP_PKEY *make_pair(const char *kind, OSSL_PARAM_BLD *build)
{
    EVP_PKEY *pkey = NULL;
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(build);
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, kind, NULL);
    if (params && ctx && EVP_PKEY_fromdata_init(ctx) > 0 &&
        EVP_PKEY_fromdata(ctx, &pkey, EVP_PKEY_KEYPAIR, params) <= 0)
        pkey = NULL;
    OSSL_PARAM_free(params);
    EVP_PKEY_CTX_free(ctx);
    return pkey;
}

static EVP_PKEY *ecdsa_key(const struct curve *c, struct zt_ssh_bytes *b)
{
    size_t n_name, n_point, n_d;
    const uint8_t *name = zt_ssh_get_string(b, &n_name), *point = zt_ssh_get_string(b, &n_point);
    const uint8_t *d = zt_ssh_get_string(b, &n_d);
    EVP_PKEY *pkey = NULL;
    if (b->bad || !is_text(name, n_name, c->name) || n_d > (size_t)c->bytes + 1)
        return NULL;
    BIGNUM *number = BN_secure_new();
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    if (number && build && BN_bin2bn(d, (int)n_d, number) &&
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, c->group, 0) &&
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, n_point) &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, number))
        pkey = make_pair("EC", build);
    OSSL_PARAM_BLD_free(build);
    BN_clear_free(number);
    return pkey;
}

/* Its parts in the file's order, and the two that OpenSSL wants besides: d modulo p - 1 and q - 1. */
enum { RSA_N, RSA_E, RSA_D, RSA_IQMP, RSA_P, RSA_Q, RSA_DP, RSA_DQ, RSA_PARTS };

static bool read_rsa(struct zt_ssh_bytes *b, BIGNUM *v[RSA_PARTS])
{
    for (int i = 0; i <= RSA_Q; i++) {
        size_t n;
        const uint8_t *p = zt_ssh_get_string(b, &n);
        if (b->bad || n > 1 + MPINT_BYTES || !BN_bin2bn(p, (int)n, v[i]))
            return false;
    }
    BN_CTX *ctx = BN_CTX_secure_new();
    bool ok = ctx && BN_sub(v[RSA_DP], v[RSA_P], BN_value_one()) &&
              BN_sub(v[RSA_DQ], v[RSA_Q], BN_value_one()) && !BN_is_zero(v[RSA_DP]) &&
              !BN_is_zero(v[RSA_DQ]) && BN_mod(v[RSA_DP], v[RSA_D], v[RSA_DP], ctx) &&
              BN_mod(v[RSA_DQ], v[RSA_D], v[RSA_DQ], ctx);
    BN_CTX_free(ctx);
    return ok;
}

static EVP_PKEY *rsa_key(struct zt_ssh_bytes *b)
{
    static const char *const names[RSA_PARTS] = {
        [RSA_N] = OSSL_PKEY_PARAM_RSA_N,          [RSA_E] = OSSL_PKEY_PARAM_RSA_E,
        [RSA_D] = OSSL_PKEY_PARAM_RSA_D,          [RSA_IQMP] = OSSL_PKEY_PARAM_RSA_COEFFICIENT1,
        [RSA_P] = OSSL_PKEY_PARAM_RSA_FACTOR1,    [RSA_Q] = OSSL_PKEY_PARAM_RSA_FACTOR2,
        [RSA_DP] = OSSL_PKEY_PARAM_RSA_EXPONENT1, [RSA_DQ] = OSSL_PKEY_PARAM_RSA_EXPONENT2,
    };
    BIGNUM *v[RSA_PARTS];
    EVP_PKEY *pkey = NULL;
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    bool ok = build;
    for (int i = 0; i < RSA_PARTS; i++) {
        v[i] = i <= RSA_E ? BN_new() : BN_secure_new();
        ok = ok && v[i];
    }
    ok = ok && read_rsa(b, v);
    for (int i = 0; ok && i < RSA_PARTS; i++)
        ok = OSSL_PARAM_BLD_push_BN(build, names[i], v[i]);
    if (ok)
        pkey = make_pair("RSA", build);
    OSSL_PARAM_BLD_free(build);
    for (int i = 0; i < RSA_PARTS; i++)
        BN_clear_free(v[i]);
    return pkey;
}

static EVP_PKEY *ed25519_key(struct zt_ssh_bytes *b)
{
    size_t n_pub, n_pair;
    zt_ssh_get_string(b, &n_pub);
    const uint8_t *pair = zt_ssh_get_string(b, &n_pair); /* private, public */
    if (b->bad || n_pub != ED25519_BYTES || n_pair != (size_t)2 * ED25519_BYTES)
        return NULL;
    return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, pair, ED25519_BYTES);
}

static int take_private(struct zt_ssh_key *key, const uint8_t *p, size_t n, struct zt_err *err)
{
    size_t n_type;
    if (n < CHECK_BYTES || memcmp(p, p + 4, 4) != 0)
        return zt_err_set(err, ZT_EINPUT, "another passphrase opens the key %s", key->path);
    struct zt_ssh_bytes b = {p + CHECK_BYTES, n - CHECK_BYTES, false};
    const uint8_t *type = zt_ssh_get_string(&b, &n_type);
    const struct curve *curve = curve_of(key->blob, key->blob_len);
    const bool rsa = zt_ssh_key_is_rsa(key->blob, key->blob_len);
    if (curve && is_text(type, n_type, curve->type))
        key->pkey = ecdsa_key(curve, &b);
    else if (rsa && is_text(type, n_type, ssh_rsa))
        key->pkey = rsa_key(&b);
    else if (!curve && !rsa && is_text(type, n_type, ed25519))
        key->pkey = ed25519_key(&b);
    return key->pkey ? 0 : zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is damaged", key->path);
}

/* ---- decryption ---- */

struct openssh {
    const uint8_t *cipher, *kdf, *options, *blob, *private; /* strings in the decoded text */
    size_t n_cipher, n_kdf, n_options, n_blob, n_private;
    size_t n_after; /* bytes behind the private half: the tag of ciphers that have one */
};

struct cipher {
    const char *name, *ossl;
    int key_bytes, iv_bytes, tag_bytes;
};

static const struct cipher *cipher_of(const struct openssh *o)
{
    static const struct cipher ciphers[] = {
        {"aes256-ctr", "AES-256-CTR", 32, 16, 0},
        {"aes256-cbc", "AES-256-CBC", 32, 16, 0},
        {"aes128-ctr", "AES-128-CTR", 16, 16, 0},
        {"aes128-cbc", "AES-128-CBC", 16, 16, 0},
        {"aes192-ctr", "AES-192-CTR", 24, 16, 0},
        {"aes256-gcm@openssh.com", "AES-256-GCM", 32, 12, 16},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(ciphers); i++)
        if (is_text(o->cipher, o->n_cipher, ciphers[i].name))
            return &ciphers[i];
    return NULL;
}

/* Whether it could be decrypted; a wrong key need not show here. */
static bool decipher(const struct cipher *c, const uint8_t *secret, const struct openssh *o,
                     uint8_t *out)
{
    int n = 0, more = 0;
    uint8_t tag[16];
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, c->ossl, NULL);
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    bool ok = cipher && ctx &&
              EVP_DecryptInit_ex2(ctx, cipher, secret, secret + c->key_bytes, NULL) &&
              EVP_CIPHER_CTX_set_padding(ctx, 0) &&
              EVP_DecryptUpdate(ctx, out, &n, o->private, (int)o->n_private);
    if (ok && c->tag_bytes) {
        memcpy(tag, o->private + o->n_private, sizeof tag);
        ok = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, c->tag_bytes, tag) > 0;
    }
    ok = ok && EVP_DecryptFinal_ex(ctx, out + n, &more);
    EVP_CIPHER_CTX_free(ctx);
    EVP_CIPHER_free(cipher);
    return ok;
}

static int unlock_openssh(struct zt_ssh_key *key, const struct openssh *o, const char *pass,
                          struct zt_err *err)
{
    struct zt_ssh_bytes kdf = {o->options, o->n_options, false};
    size_t n_salt;
    uint8_t secret[64];
    const struct cipher *c = cipher_of(o);
    const uint8_t *salt = zt_ssh_get_string(&kdf, &n_salt);
    const uint32_t rounds = zt_ssh_get_u32(&kdf);
    if (!c || !is_text(o->kdf, o->n_kdf, "bcrypt") || kdf.bad ||
        o->n_after < (size_t)c->tag_bytes || o->n_private % 8)
        return zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is encrypted with %.*s", key->path,
                          (int)o->n_cipher, (const char *)o->cipher);
    if (!pass[0])
        return zt_err_set(err, ZT_EINPUT, "the key %s has a passphrase", key->path);
    int rc = zt_bcrypt_pbkdf(pass, strlen(pass), salt, n_salt, rounds, secret,
                             (size_t)(c->key_bytes + c->iv_bytes), err);
    uint8_t *clear = zt_xcalloc(o->n_private + EVP_MAX_BLOCK_LENGTH, 1);
    if (!rc && !decipher(c, secret, o, clear))
        rc = zt_err_set(err, ZT_EINPUT, "another passphrase opens the key %s", key->path);
    if (!rc)
        rc = take_private(key, clear, o->n_private, err);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(clear, o->n_private);
    free(clear);
    return rc;
}

/* ---- files ---- */

static const char begin_openssh[] = "-----BEGIN OPENSSH PRIVATE KEY-----";

/* The base64 between the first line and the one that begins with '-'. */
static int decode_body(const char *text, struct zt_str *out)
{
    EVP_ENCODE_CTX *ctx = EVP_ENCODE_CTX_new();
    const char *p = text + strlen(begin_openssh), *end = strchr(p, '-');
    int n = 0, more = 0;
    bool ok = ctx && end;
    if (ok) {
        uint8_t *bytes = zt_xcalloc((size_t)(end - p) + 3, 1);
        EVP_DecodeInit(ctx);
        ok = EVP_DecodeUpdate(ctx, bytes, &n, (const uint8_t *)p, (int)(end - p)) >= 0 &&
             EVP_DecodeFinal(ctx, bytes + n, &more) >= 0;
        zt_str_add(out, bytes, ok ? (size_t)(n + more) : 0);
        explicit_bzero(bytes, (size_t)(end - p));
        free(bytes);
    }
    EVP_ENCODE_CTX_free(ctx);
    return ok ? 0 : -1;
}

static bool split_openssh(const struct zt_str *body, struct openssh *o)
{
    static const char magic[] = "openssh-key-v1"; /* with its NUL */
    struct zt_ssh_bytes b = {(const uint8_t *)body->buf, body->len, false};
    if (b.left < sizeof magic || memcmp(b.p, magic, sizeof magic) != 0)
        return false;
    b.p += sizeof magic;
    b.left -= sizeof magic;
    o->cipher = zt_ssh_get_string(&b, &o->n_cipher);
    o->kdf = zt_ssh_get_string(&b, &o->n_kdf);
    o->options = zt_ssh_get_string(&b, &o->n_options);
    const uint32_t n_keys = zt_ssh_get_u32(&b);
    o->blob = zt_ssh_get_string(&b, &o->n_blob);
    o->private = zt_ssh_get_string(&b, &o->n_private);
    o->n_after = b.left;
    return !b.bad && n_keys == 1;
}

/* pass NULL: only what can be had without one. */
static int open_openssh(struct zt_ssh_key *key, const char *pass, struct zt_err *err)
{
    struct zt_str body = {0};
    struct openssh o = {0};
    int rc = 0;
    if (decode_body(key->text.buf, &body) || !split_openssh(&body, &o))
        rc = zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is damaged", key->path);
    else
        set_blob(key, o.blob, o.n_blob);
    const bool clear = !rc && is_text(o.cipher, o.n_cipher, "none");
    if (!rc)
        rc = check_type(key, err);
    if (!rc && clear)
        rc = take_private(key, o.private, o.n_private, err);
    else if (!rc && pass)
        rc = unlock_openssh(key, &o, pass, err);
    else if (!rc && !cipher_of(&o))
        rc = unlock_openssh(key, &o, "", err); /* says why not */
    wipe(&body);
    return rc;
}

/* ---- PEM ---- */

/* OpenSSL would ask the terminal by itself. */
static int give_pass(char *buf, int size, int writing, void *pass)
{
    const size_t n = pass ? strlen(pass) : 0;
    (void)writing;
    if (n == 0 || n >= (size_t)size)
        return -1;
    memcpy(buf, pass, n + 1);
    return (int)n;
}

static void put_rsa(struct zt_str *blob, const EVP_PKEY *pkey)
{
    BIGNUM *n = NULL, *e = NULL;
    if (EVP_PKEY_get_bn_param(pkey, OSSL_PKEY_PARAM_RSA_N, &n) &&
        EVP_PKEY_get_bn_param(pkey, OSSL_PKEY_PARAM_RSA_E, &e) && BN_num_bytes(n) <= MPINT_BYTES &&
        BN_num_bytes(e) <= MPINT_BYTES) {
        zt_ssh_put_string(blob, ssh_rsa, strlen(ssh_rsa));
        put_mpint(blob, e);
        put_mpint(blob, n);
    }
    BN_free(n);
    BN_free(e);
}

/* Nothing, of a key that is not served. */
static void put_blob(struct zt_str *blob, const EVP_PKEY *pkey)
{
    uint8_t point[256];
    char group[64];
    size_t n = sizeof point;
    const int id = EVP_PKEY_get_id(pkey);
    if (id == EVP_PKEY_ED25519 && EVP_PKEY_get_raw_public_key(pkey, point, &n) == 1) {
        zt_ssh_put_string(blob, ed25519, strlen(ed25519));
        zt_ssh_put_string(blob, point, n);
    } else if (id == EVP_PKEY_RSA) {
        put_rsa(blob, pkey);
    } else if (EVP_PKEY_get_group_name(pkey, group, sizeof group, NULL) == 1 &&
               EVP_PKEY_get_octet_string_param(pkey, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point,
                                               &n)) {
        for (size_t i = 0; i < ZT_ARRAY_LEN(curves); i++) {
            if (strcmp(group, curves[i].group))
                continue;
            zt_ssh_put_string(blob, curves[i].type, strlen(curves[i].type));
            zt_ssh_put_string(blob, curves[i].name, strlen(curves[i].name));
            zt_ssh_put_string(blob, point, n);
        }
    }
}

static int blob_of_pkey(struct zt_ssh_key *key, struct zt_err *err)
{
    struct zt_str blob = {0};
    put_blob(&blob, key->pkey);
    if (!blob.len)
        return zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is not ed25519, ecdsa or RSA",
                          key->path);
    /* Who offered the key of PATH.pub has made room for a signature of that one. */
    const bool other =
        key->blob && (key->blob_len != blob.len || memcmp(key->blob, blob.buf, blob.len) != 0);
    if (!other)
        set_blob(key, blob.buf, blob.len);
    zt_str_release(&blob);
    return other ? zt_err_set(err, ZT_EUNSUPPORTED, "%s.pub is of another key than %s", key->path,
                              key->path)
                 : 0;
}

/* A line "type base64 comment"; whether it is one. */
static bool read_line(struct zt_ssh_key *key, const char *path)
{
    struct zt_str text = {0};
    struct zt_err err;
    int n = -1;
    const char *word =
        zt_read_file(path, FILE_BYTES, &text, &err) ? NULL : strchr(zt_str_get(&text), ' ');
    const size_t len = word ? strcspn(++word, " \r\n") : 0;
    uint8_t *bytes = zt_xcalloc(len + 4, 1);
    if (len && len % 4 == 0)
        n = EVP_DecodeBlock(bytes, (const uint8_t *)word, (int)len);
    if (n > 0)
        set_blob(key, bytes, (size_t)(n - (word[len - 1] == '=') - (word[len - 2] == '=')));
    free(bytes);
    zt_str_release(&text);
    return n > 0;
}

static bool read_pub(struct zt_ssh_key *key, const char *path)
{
    struct zt_str pub = {0};
    zt_str_printf(&pub, "%s.pub", path);
    const bool ok = read_line(key, pub.buf);
    zt_str_release(&pub);
    return ok;
}

void zt_ssh_key_read_public(const char *path, struct zt_ssh_key *key)
{
    if (!read_pub(key, path))
        read_line(key, path);
}

static int open_pem(struct zt_ssh_key *key, const char *pass, struct zt_err *err)
{
    BIO *bio = BIO_new_mem_buf(key->text.buf, (int)key->text.len);
    key->pkey = bio ? PEM_read_bio_PrivateKey(bio, NULL, give_pass, (char *)pass) : NULL;
    BIO_free(bio);
    if (key->pkey) {
        int rc = blob_of_pkey(key, err);
        if (rc) {
            EVP_PKEY_free(key->pkey);
            key->pkey = NULL;
        }
        return rc;
    }
    if (!strstr(key->text.buf, "ENCRYPTED"))
        return zt_err_set(err, ZT_EUNSUPPORTED, "the key %s cannot be read", key->path);
    if (pass)
        return zt_err_set(err, ZT_EINPUT, "another passphrase opens the key %s", key->path);
    if (!read_pub(key, key->path))
        return zt_err_set(err, ZT_EUNSUPPORTED, "the key %s has a passphrase and no %s.pub",
                          key->path, key->path);
    return check_type(key, err);
}

static int open_key(struct zt_ssh_key *key, const char *pass, struct zt_err *err)
{
    const bool openssh = strncmp(key->text.buf, begin_openssh, strlen(begin_openssh)) == 0;
    int rc = openssh ? open_openssh(key, pass, err) : open_pem(key, pass, err);
    if (key->pkey)
        wipe(&key->text);
    return rc;
}

int zt_ssh_key_read(const char *path, struct zt_ssh_key *key, struct zt_err *err)
{
    struct stat st;
    memset(key, 0, sizeof *key);
    if (stat(path, &st))
        return zt_err_errno(err, ZT_EINPUT, "%s", path);
    key->path = zt_xstrdup(path);
    int rc = 0;
    if (!S_ISREG(st.st_mode) || zt_read_file(path, FILE_BYTES, &key->text, err))
        rc = zt_err_set(err, ZT_EUNSUPPORTED, "the key %s cannot be read", path);
    else if (st.st_mode & 077)
        rc = zt_err_set(err, ZT_EUNSUPPORTED, "others may read the key %s", path);
    else if (key->text.len == 0)
        rc = zt_err_set(err, ZT_EUNSUPPORTED, "the key %s is empty", path);
    if (!rc)
        rc = open_key(key, NULL, err);
    if (rc)
        zt_ssh_key_release(key);
    return rc;
}

int zt_ssh_key_unlock(struct zt_ssh_key *key, const char *pass, struct zt_err *err)
{
    return key->pkey ? 0 : open_key(key, pass, err);
}

void zt_ssh_key_release(struct zt_ssh_key *key)
{
    EVP_PKEY_free(key->pkey);
    wipe(&key->text);
    free(key->blob);
    free(key->path);
    memset(key, 0, sizeof *key);
}

/* ---- signatures ---- */

/* OpenSSL's DER to the protocol's two numbers (RFC 5656, 3.1.2). */
static bool ecdsa_numbers(const uint8_t *der, size_t n, struct zt_str *out)
{
    ECDSA_SIG *sig = d2i_ECDSA_SIG(NULL, &der, (long)n);
    if (!sig)
        return false;
    put_mpint(out, ECDSA_SIG_get0_r(sig));
    put_mpint(out, ECDSA_SIG_get0_s(sig));
    ECDSA_SIG_free(sig);
    return true;
}

static const char *digest_of(const struct zt_ssh_key *key, enum zt_ssh_rsa rsa)
{
    const struct curve *curve = curve_of(key->blob, key->blob_len);
    if (zt_ssh_key_is_rsa(key->blob, key->blob_len))
        return rsa == ZT_SSH_RSA_SHA512 ? "SHA512" : "SHA256";
    return curve ? curve->digest : NULL;
}

int zt_ssh_key_sign(const struct zt_ssh_key *key, enum zt_ssh_rsa rsa, const uint8_t *data,
                    size_t len, uint8_t **sig, size_t *sig_len, struct zt_err *err)
{
    struct zt_str out = {0};
    uint8_t bytes[MPINT_BYTES];
    size_t n = sizeof bytes;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok =
        ctx &&
        EVP_DigestSignInit_ex(ctx, NULL, digest_of(key, rsa), NULL, NULL, key->pkey, NULL) > 0 &&
        EVP_DigestSign(ctx, bytes, &n, data, len) > 0;
    EVP_MD_CTX_free(ctx);
    if (ok && curve_of(key->blob, key->blob_len))
        ok = ecdsa_numbers(bytes, n, &out);
    else if (ok)
        zt_str_add(&out, bytes, n);
    if (!ok) {
        zt_str_release(&out);
        return zt_err_set(err, ZT_ESYS, "the key %s does not sign", key->path);
    }
    *sig = (uint8_t *)out.buf;
    *sig_len = out.len;
    return 0;
}
