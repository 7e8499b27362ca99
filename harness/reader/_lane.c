/* What the reader does with one read of a connection: receive it, time it, make rows of it.

   No Python in here: the tests load this file alone, also under the sanitizers, and compare it
   with the Python modules that `_lane.h` names. */
#define _GNU_SOURCE
#include "_lane.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* ---- when it arrived: reader.stamping.SocketStamps.arrival */

int64_t clock_ns(int64_t anchor_ns) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec + anchor_ns;
}

/* `read_ns`: the clock after the read; 0: look at it only if it is needed. */
void lane_arrival(struct lane *lane, const struct poll_round *round, int64_t stamp_ns, int drained,
                  int64_t read_ns, struct socket_read *out) {
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

/* ---- what it holds

   Everything below runs on bytes that a server chose. Each step first compares what it needs with
   what is left before `end`; sizes are unsigned only where they cannot become negative. */

/* The next chunk of [data, end): where it begins and its size; NULL unless it is whole and is that
   of events: DATA ... EVENT_END. The return is what follows it. */
static char *next_chunk(char *data, char *end, char **body, size_t *size) {
    size_t n = 0;
    char *digits = data;
    for (; data < end && data - digits < 7; data++) { /* 28 bits: nothing overflows */
        char c = *data;
        if (c >= '0' && c <= '9') n = n * 16 + (size_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') n = n * 16 + (size_t)((c | 32) - 'a' + 10);
        else break;
    }
    if (data == digits || end - data < 2 || memcmp(data, CHUNK_END, 2)) return NULL;
    data += 2;
    if (n < SHORTEST_EVENT || (size_t)(end - data) < n + 2) return NULL;
    if (memcmp(data, DATA, LENGTH_OF(DATA))) return NULL;
    if (memcmp(data + n - LENGTH_OF(EVENT_END), EVENT_END CHUNK_END, 4)) return NULL;
    *body = data;
    *size = n;
    return data + n + 2;
}

/* Python writes the template and its sizes; C believes them no further than its own memory goes. */
static int has_template(const struct lane *lane) {
    int64_t before = lane->before_size, rest = lane->rest_size;
    return before > 0 && before <= SHAPE_BYTES && rest >= 0 && rest <= SHAPE_BYTES - before;
}

/* The number that [data, end) begins with, of MAX_DIGITS at most, and what follows it: `data` itself
   where there is none. */
static const char *read_number(const char *data, const char *end, int64_t *number) {
    const char *digits = data;
    int64_t n = 0;
    for (; data < end && *data >= '0' && *data <= '9' && data - digits < MAX_DIGITS; data++)
        n = n * 10 + (*data - '0');
    *number = n;
    return data;
}

/* Whether the event is a token like the lane's template (wire.token_template.TokenTemplate.match); if so `running`
   is its running count, or -1. */
static int is_token(const struct lane *lane, const char *data, size_t size, int64_t *running) {
    if (!has_template(lane)) return 0;
    const char *end = data + size - LENGTH_OF(EVENT_END);
    const unsigned char *rest = (const unsigned char *)lane->shape + lane->before_size;
    const unsigned char *rest_end = rest + lane->rest_size;
    data += LENGTH_OF(DATA);
    if (end - data < lane->before_size) return 0;
    if (memcmp(data, lane->shape, (size_t)lane->before_size)) return 0;
    data += lane->before_size;
    const char *quote = memchr(data, '"', (size_t)(end - data));
    if (!quote || quote == data || quote[-1] == '\\') return 0; /* no text, or not its end */
    data = quote;
    *running = -1;
    while (rest < rest_end) {
        if (*rest != ANY_NUMBER && *rest != RUNNING_COUNT) { /* compare up to the next number */
            const unsigned char *from = rest;
            while (rest < rest_end && *rest != ANY_NUMBER && *rest != RUNNING_COUNT) rest++;
            if (end - data < rest - from || memcmp(data, from, (size_t)(rest - from))) return 0;
            data += rest - from;
            continue;
        }
        int64_t n;
        const char *digits = data;
        data = read_number(data, end, &n);
        if (data == digits) return 0;
        if (*rest++ == RUNNING_COUNT) *running = n;
    }
    return data == end;
}

/* The running count of an event unlike the template; -1: it has none. */
static int64_t count_in(const char *data, size_t size) {
    const char *end = data + size;
    const char *digits = memmem(data, size, COUNT_KEY, LENGTH_OF(COUNT_KEY));
    if (!digits) return -1;
    digits += LENGTH_OF(COUNT_KEY);
    while (digits < end && *digits == ' ') digits++;
    int64_t n;
    const char *after = read_number(digits, end, &n);
    int is_longer = after < end && *after >= '0' && *after <= '9'; /* no count of tokens */
    return after == digits || is_longer ? -1 : n;
}

static int holds(const char *data, size_t size, const char *word, size_t length) {
    return memmem(data, size, word, length) != NULL;
}
#define HOLDS(data, size, word) holds(data, size, word, LENGTH_OF(word))

/* Whether the user must be told of it at once: how a stream ends, an error, or an object that is no
   part of an answer (it may say that the server failed, in words that nobody knows). */
static int is_special(const char *data, size_t size) {
    if (!HOLDS(data, size, DELTA_KEY) && !HOLDS(data, size, CHOICES_KEY)) return 1;
    return HOLDS(data, size, DONE) || HOLDS(data, size, ERROR_KEY) || HOLDS(data, size, ABORT);
}

/* Make rows of a read that is nothing but whole events; how many, 0 for one that Python must see.
   There is room for one row in SHORTEST_CHUNK bytes. */
size_t lane_rows(struct lane *lane, struct socket_read *read, struct row *rows) {
    char *at = read->data, *end = at + read->size, *body;
    size_t size, n = 0, known = 0;
    int64_t counted = lane->counted;
    for (; at < end; n++) {
        if (!(at = next_chunk(at, end, &body, &size))) return 0;
        rows[n] = (struct row){lane->stream, read->at_ns, read->bound_ns, TOKEN, -1};
        int64_t count;
        if (is_token(lane, body, size, &rows[n].value)) {
            known++;
            count = rows[n].value;
        } else {
            if (lane->owner == LEARNING || is_special(body, size)) return 0;
            count = count_in(body, size);
        }
        if (count >= 0) counted = count;
    }
    if (!n) return 0;
    lane->n_bytes += read->size;
    lane->body_ns = read->at_ns;
    lane->counted = counted;
    if (known == n) {
        rows[n - 1].kind += read->exact; /* an event that another follows may have come earlier */
        read->size = 0;
        return n;
    }
    /* The decoder gets the events' bytes: moved together over the chunks' sizes, in place. What is
       written never reaches what is still to be parsed. */
    char *to = read->data;
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
int lane_receive(struct lane *lane, const struct poll_round *round, struct socket_read *out) {
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
    out->handed = size <= 0 || lane->owner <= PYTHON || lane->waiting || lane->sealed;
    if (size <= 0) return 1;
    int64_t stamp_ns = round->trust_stamps ? stamp_of(&message) : NO_STAMP;
    out->stamped = stamp_ns != NO_STAMP;
    if (out->stamped) stamp_ns -= round->offset_ns;
    lane_arrival(lane, round, stamp_ns, (size_t)size < round->read_bytes, 0, out);
    return 1;
}
