/* One connection's bytes: plain, or through OpenSSL where it was compiled in and a certificate was
   given. Part of paced_server.c and of c_client.c, each of which uses some of it. */
#include <fcntl.h>
#include <sys/socket.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
static SSL_CTX *context; /* NULL: plain */

static inline int tls_begin(const char *certificate) {
    context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return SSL_CTX_use_certificate_chain_file(context, certificate) == 1 &&
           SSL_CTX_use_PrivateKey_file(context, certificate, SSL_FILETYPE_PEM) == 1;
}

static inline SSL *tls_new(int fd) {
    if (!context) return NULL;
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    SSL_set_accept_state(tls);
    return tls;
}

static inline void tls_free(SSL *tls) { SSL_free(tls); }

/* A client's end: it has shaken hands, verifies nothing and does not wait from now on. */
static inline SSL *tls_connect(int fd) {
    if (!context) context = SSL_CTX_new(TLS_client_method());
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    if (SSL_connect(tls) != 1) exit(1);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return tls;
}

/* -1 with EAGAIN where it has to wait, 0 at the end. */
static ssize_t outcome(SSL *tls, int size) {
    if (size > 0) return size;
    int why = SSL_get_error(tls, size);
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EIO;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}
#else
typedef void SSL;
static inline int tls_begin(const char *certificate) { return !certificate; }
static inline SSL *tls_new(int fd) { return (void)fd, NULL; }
static inline void tls_free(SSL *tls) { (void)tls; }
static inline SSL *tls_connect(int fd) { return (void)fd, NULL; }
#endif

/* As recv, with the kernel's stamp. OpenSSL gives none, so there it is taken by looking ahead. */
static ssize_t tls_recv(int fd, SSL *tls, char *data, size_t room, long *stamp_ns) {
    char control[64], peeked;
    struct iovec part = {tls ? &peeked : data, tls ? 1 : room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT | (tls ? MSG_PEEK : 0));
    struct cmsghdr *first = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (first) {
        struct timespec *when = (struct timespec *)CMSG_DATA(first);
        *stamp_ns = when->tv_sec * 1000000000L + when->tv_nsec;
    }
#ifdef WITH_TLS
    if (tls) return outcome(tls, SSL_read(tls, data, room)); /* shakes hands first */
#endif
    return size;
}

static ssize_t tls_send(int fd, SSL *tls, const char *data, size_t size) {
#ifdef WITH_TLS
    if (tls) return outcome(tls, SSL_write(tls, data, size));
#else
    (void)tls;
#endif
    return send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}
