/* A lane: what is kept of one connection, when a read of it arrived, and what the read holds. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define NO_STAMP (-1)
#define LANE_CELLS 128        /* 1 kB; `lanes.py` has the same constants */
#define SHAPE_BYTES (8 * (LANE_CELLS - 10))
#define LEAST_CHUNK 13        /* bytes of the shortest event in its chunk */

enum { CLOSED, HAND_OVER, WHOLE_EVENTS, LEARNING }; /* a lane's mode */
enum { BYTES = 0, TOKEN = 4 };                      /* a row's kind; + 1: exact */

struct lane {
    int64_t mode, stream, drained_ns, last_ns, round, body_ns, n_bytes, before_size, rest_size;
    int64_t waiting;         /* reads that Python has not seen yet: the next ones go there too */
    char shape[SHAPE_BYTES]; /* of a token's event: before its text, then the rest */
};

struct round {
    int64_t number, polled_ns, before_ns, offset_ns, anchor_ns;
    int believe;
    size_t read_bytes;
};

struct row { int64_t stream, at_ns, bound_ns, kind, value; };

struct read {
    int fd, code, handed, stamped; /* code: errno; handed: to Python, as it is */
    char *data;           /* body bytes of whole chunks, or all that was read */
    ssize_t size;
    int64_t at_ns, bound_ns;
    int exact;
};

/* ---- when it arrived: wire.stamps.SocketStamps.arrival */

static int64_t clock_ns(int64_t anchor_ns) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec + anchor_ns;
}

static void arrival(struct lane *lane, const struct round *round, int64_t stamp_ns, int drained,
                    int64_t read_ns, struct read *out) {
    int64_t before = lane->drained_ns, bound = before, at;
    if (round->number - lane->round > 1 && round->before_ns > bound) bound = round->before_ns;
    lane->round = round->number;
    if (drained) lane->drained_ns = round->polled_ns;
    out->exact = 0;
    if (stamp_ns >= before) {
        at = stamp_ns;
        out->exact = drained;
    } else {
        at = read_ns ? read_ns : clock_ns(round->anchor_ns);
        if (stamp_ns != NO_STAMP) bound = stamp_ns;
    }
    if (at < lane->last_ns) {
        if (at < bound) bound = at;
        at = lane->last_ns;
        out->exact = 0;
    }
    lane->last_ns = at;
    out->at_ns = at;
    out->bound_ns = bound < at ? bound : at;
}

static int64_t stamp_of(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec when;
        memcpy(&when, CMSG_DATA(c), sizeof when);
        return when.tv_sec * 1000000000LL + when.tv_nsec;
    }
    return NO_STAMP;
}

/* ---- what it holds */

/* The next chunk of [data, end): where it begins and its size; NULL unless it is whole and is that
   of events: `data: ...` up to two line feeds. The return is what follows it. */
static char *next_chunk(char *data, char *end, char **body, size_t *size) {
    size_t n = 0;
    char *digits = data;
    for (; data < end && data - digits < 7; data++) {
        char c = *data;
        if (c >= '0' && c <= '9') n = n * 16 + (size_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') n = n * 16 + (size_t)((c | 32) - 'a' + 10);
        else break;
    }
    if (end - data < 2 || data[0] != '\r' || data[1] != '\n') return NULL;
    data += 2;
    if (n < 8 || (size_t)(end - data) < n + 2) return NULL;
    if (memcmp(data, "data: ", 6) || memcmp(data + n - 2, "\n\n\r\n", 4)) return NULL;
    *body = data;
    *size = n;
    return data + n + 2;
}

/* Whether the event is a token like the one that the lane has learned (wire.alike.Alike.count);
   if so `running` is its running count, or -1. */
static int is_token(const struct lane *lane, const char *data, size_t size, int64_t *running) {
    const char *end = data + size - 2;
    const unsigned char *rest = (const unsigned char *)lane->shape + lane->before_size;
    const unsigned char *rest_end = rest + lane->rest_size;
    data += 6;
    if (!lane->before_size || end - data < lane->before_size) return 0;
    if (memcmp(data, lane->shape, (size_t)lane->before_size)) return 0;
    data += lane->before_size;
    const char *quote = memchr(data, '"', (size_t)(end - data));
    if (!quote || quote == data || quote[-1] == '\\') return 0;
    data = quote;
    *running = -1;
    while (rest < rest_end) {
        if (*rest > 2) { /* compare up to the next number */
            const unsigned char *from = rest;
            while (rest < rest_end && *rest > 2) rest++;
            if (end - data < rest - from || memcmp(data, from, (size_t)(rest - from))) return 0;
            data += rest - from;
            continue;
        }
        int64_t n = 0; /* 1: any number; 2: the running count */
        const char *digits = data;
        for (; data < end && *data >= '0' && *data <= '9' && data - digits < 18; data++)
            n = n * 10 + (*data - '0');
        if (data == digits) return 0;
        if (*rest++ == 2) *running = n;
    }
    return data == end;
}

/* Whether the user must be told of it at once: how a stream ends, or an error object. */
static int is_special(const char *data, size_t size) {
    return memmem(data, size, "[DONE]", 6) || memmem(data, size, "\"error\"", 7);
}

/* Make rows of a read that is nothing but whole events; how many, 0 for one that Python must see.
   There is room for one row in LEAST_CHUNK bytes. */
static size_t rows_of(struct lane *lane, struct read *read, struct row *rows) {
    char *at = read->data, *end = at + read->size, *body;
    size_t size, n = 0, known = 0;
    for (; at < end; n++) {
        if (!(at = next_chunk(at, end, &body, &size))) return 0;
        rows[n] = (struct row){lane->stream, read->at_ns, read->bound_ns, TOKEN, -1};
        if (is_token(lane, body, size, &rows[n].value)) known++;
        else if (lane->mode == LEARNING || is_special(body, size)) return 0;
    }
    lane->n_bytes += read->size;
    lane->body_ns = read->at_ns;
    if (known == n) {
        rows[n - 1].kind += read->exact; /* an event that another follows may have come earlier */
        read->size = 0;
        return n;
    }
    char *to = read->data; /* the chunks' bytes, moved together */
    for (at = read->data; at < end; to += size) {
        at = next_chunk(at, end, &body, &size);
        memmove(to, body, size);
    }
    read->size = to - read->data;
    rows[0].kind = BYTES + read->exact;
    rows[0].value = read->size;
    return 1;
}

/* ---- reading */

/* Read a socket once; 0 when there was nothing to read after all. */
static int read_one(struct lane *lane, const struct round *round, struct read *out) {
    union { char bytes[CMSG_SPACE(sizeof(struct timespec))]; struct cmsghdr align; } control;
    struct iovec part = {out->data, round->read_bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t size;
    do size = recvmsg(out->fd, &message, MSG_DONTWAIT);
    while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    out->code = size < 0 ? errno : 0;
    out->size = size < 0 ? 0 : size;
    out->handed = size <= 0 || lane->mode == HAND_OVER || lane->waiting;
    if (size <= 0) return 1;
    int64_t stamp_ns = round->believe ? stamp_of(&message) : NO_STAMP;
    out->stamped = stamp_ns != NO_STAMP;
    if (out->stamped) stamp_ns -= round->offset_ns;
    arrival(lane, round, stamp_ns, (size_t)size < round->read_bytes, 0, out);
    return 1;
}
