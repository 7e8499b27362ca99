/* One round of the reader in one call: what is ready, all of it read, with the kernel's stamps.

   The Python beside it (`plainreads`, `wire.stamps`, `wire.alike`) does the same and is what says
   why. This does it for a fifth of the CPU time, without the interpreter's lock while it reads.

   Every connection has a lane: a row of LANE_CELLS int64 in a table that Python owns, at the index
   of its file descriptor (`lanes.py` has the same constants). Of a read that holds nothing but
   whole events in whole chunks, rows for the decoder are made here; any other read (the head, the
   end, half an event, an error, TLS) is handed to Python as it is.

   Row for the decoder, five int64: stream, at_ns, bound_ns, kind, and for bytes (kind 0, exact: 1)
   how many follow in `blob`; for a token (kind 4, exact: 5) its running count, or -1. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define NO_STAMP (-1)
#define MOST_READS 256        /* between two visits to Python */
#define MOST_ROWS 1024        /* the same; a read may hold many tokens */
#define SCRATCH (1 << 18)     /* bytes; the same */
#define LANE_CELLS 128        /* 1 kB */
#define SHAPE_BYTES (8 * (LANE_CELLS - 9))

#define MORE (EPOLLRDHUP | EPOLLHUP | EPOLLERR) /* behind what is read, its end */
#define WATCHED (EPOLLIN | EPOLLRDHUP | EPOLLET)

enum { CLOSED, HAND_OVER, WHOLE_EVENTS, LEARNING }; /* a lane's mode */
enum { BYTES = 0, TOKEN = 4 };                      /* a row's kind; + 1: exact */

struct lane {
    int64_t mode, stream, drained_ns, last_ns, round, body_ns, n_bytes, before_size, rest_size;
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

static _Thread_local char scratch[SCRATCH];
static _Thread_local struct row rows[MOST_ROWS];
static _Thread_local struct read reads[MOST_READS];

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

/* Make rows of a read that is nothing but whole events; how many, 0 for one that Python must see. */
static size_t rows_of(struct lane *lane, struct read *read, struct row *rows, size_t room) {
    char *at = read->data, *end = at + read->size, *body;
    size_t size, n = 0, known = 0;
    for (; at < end; n++) {
        if (n == room || !(at = next_chunk(at, end, &body, &size))) return 0;
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
    out->handed = size <= 0 || lane->mode == HAND_OVER;
    if (size <= 0) return 1;
    int64_t stamp_ns = round->believe ? stamp_of(&message) : NO_STAMP;
    out->stamped = stamp_ns != NO_STAMP;
    if (out->stamped) stamp_ns -= round->offset_ns;
    arrival(lane, round, stamp_ns, (size_t)size < round->read_bytes, 0, out);
    return 1;
}

struct seen { long n, stamped; int64_t n_bytes, latest_ns; };

/* Read sockets until all are read or room is short; how many of `events` are done with. */
static int read_some(int epoll, struct lane *lanes, size_t n_lanes, const struct round *round,
                     const struct epoll_event *events, int n_events,
                     int *n_reads, size_t *n_rows, struct seen *seen) {
    char *free_ = scratch;
    int i = 0;
    for (*n_reads = 0, *n_rows = 0; i < n_events; i++) {
        if (*n_reads == MOST_READS || free_ + round->read_bytes > scratch + SCRATCH ||
            *n_rows > MOST_ROWS / 2) break;
        int fd = events[i].data.fd;
        if (fd < 0 || (size_t)fd >= n_lanes || lanes[fd].mode == CLOSED) continue;
        struct read *read = &reads[*n_reads];
        *read = (struct read){.fd = fd, .data = free_};
        if (!read_one(&lanes[fd], round, read)) continue;
        if (read->size && (read->size == round->read_bytes || events[i].events & MORE)) {
            struct epoll_event again = {.events = WATCHED, .data.fd = fd};
            epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &again); /* an edge is told once */
        }
        if (read->size) {
            seen->n++;
            seen->stamped += read->stamped;
            seen->n_bytes += read->size;
            if (read->at_ns > seen->latest_ns) seen->latest_ns = read->at_ns;
        }
        if (!read->handed) {
            size_t n = rows_of(&lanes[fd], read, rows + *n_rows, MOST_ROWS - *n_rows);
            *n_rows += n;
            read->handed = n == 0;
        }
        free_ += read->size;
        (*n_reads)++;
    }
    return i;
}

/* Append to a bytearray of Python's; the room for `size` bytes, NULL with an exception. */
static char *grow(PyObject *array, Py_ssize_t size) {
    Py_ssize_t old = PyByteArray_Size(array);
    if (PyByteArray_Resize(array, old + size)) return NULL;
    return PyByteArray_AsString(array) + old;
}

/* Rows and bytes into the batch, other reads into `others`; -1 with an exception. */
static int give(PyObject *row_bytes, PyObject *blob, PyObject *others, int n_reads, size_t n_rows) {
    Py_ssize_t total = 0;
    char *to;
    for (int i = 0; i < n_reads; i++) {
        struct read *r = &reads[i];
        if (!r->handed) {
            total += r->size;
            continue;
        }
        PyObject *other = Py_BuildValue("iy#LLOi", r->fd, r->data, (Py_ssize_t)r->size,
                                        (long long)r->at_ns, (long long)r->bound_ns,
                                        r->exact ? Py_True : Py_False, r->code);
        if (!other) return -1;
        int failed = PyList_Append(others, other);
        Py_DECREF(other);
        if (failed) return -1;
    }
    if (n_rows) {
        if (!(to = grow(row_bytes, (Py_ssize_t)(n_rows * sizeof *rows)))) return -1;
        memcpy(to, rows, n_rows * sizeof *rows);
    }
    if (total) {
        if (!(to = grow(blob, total))) return -1;
        for (int i = 0; i < n_reads; i++) {
            if (reads[i].handed) continue;
            memcpy(to, reads[i].data, (size_t)reads[i].size);
            to += reads[i].size;
        }
    }
    return 0;
}

/* ---- Python's side */

/* (ready, reads, stamped reads, bytes, latest at_ns, reads that are left to Python: each
   (descriptor, data, at_ns, bound_ns, exact, errno), without data where the connection ended) */
static PyObject *drain(PyObject *Py_UNUSED(module), PyObject *args) {
    int epoll, most, believe;
    long long number, polled_ns, before_ns, offset_ns, anchor_ns;
    Py_ssize_t read_bytes;
    Py_buffer table;
    PyObject *row_bytes, *blob;
    if (!PyArg_ParseTuple(args, "iw*O!O!inLLLLLp", &epoll, &table, &PyByteArray_Type, &row_bytes,
                          &PyByteArray_Type, &blob, &most, &read_bytes, &number, &polled_ns,
                          &before_ns, &offset_ns, &anchor_ns, &believe)) return NULL;
    struct round round = {number, polled_ns, before_ns, offset_ns, anchor_ns, believe,
                          (size_t)(read_bytes < SCRATCH ? read_bytes : SCRATCH)};
    struct lane *lanes = table.buf;
    size_t n_lanes = (size_t)table.len / sizeof *lanes, n_rows;
    struct seen seen = {0};
    struct epoll_event *events = malloc(sizeof *events * (size_t)most);
    PyObject *others = PyList_New(0), *result = NULL;
    int ready = 0, done = 0, n_reads;
    if (!events || !others) {
        PyErr_NoMemory();
        goto end;
    }
    do {
        Py_BEGIN_ALLOW_THREADS
        if (!done) {
            ready = epoll_wait(epoll, events, most, 0);
            if (ready < 0) ready = 0; /* a signal: the next round sees them */
        }
        done += read_some(epoll, lanes, n_lanes, &round, events + done, ready - done, &n_reads, &n_rows,
                          &seen);
        Py_END_ALLOW_THREADS
        if (give(row_bytes, blob, others, n_reads, n_rows)) goto end;
    } while (done < ready);
    result = Py_BuildValue("illLLO", ready, seen.n, seen.stamped, (long long)seen.n_bytes,
                           (long long)seen.latest_ns, others);
end:
    free(events);
    Py_XDECREF(others);
    PyBuffer_Release(&table);
    return result;
}

/* Only of a change: a socket that was drained would be looked at twice for each event else. */
static PyObject *watch(PyObject *Py_UNUSED(module), PyObject *args) {
    int epoll, fd;
    if (!PyArg_ParseTuple(args, "ii", &epoll, &fd)) return NULL;
    struct epoll_event event = {.events = WATCHED, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* The rules alone, for the tests: one read of lane 0. */
static PyObject *arrived(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer table;
    long long stamp_ns, polled_ns, read_ns, number, before_ns;
    int drained;
    if (!PyArg_ParseTuple(args, "w*LLLpLL", &table, &stamp_ns, &polled_ns, &read_ns, &drained,
                          &number, &before_ns)) return NULL;
    struct round round = {.number = number, .polled_ns = polled_ns, .before_ns = before_ns};
    struct read read;
    if (table.len >= (Py_ssize_t)sizeof(struct lane))
        arrival(table.buf, &round, stamp_ns, drained, read_ns, &read);
    PyBuffer_Release(&table);
    return Py_BuildValue("LLO", (long long)read.at_ns, (long long)read.bound_ns,
                         read.exact ? Py_True : Py_False);
}

static PyMethodDef methods[] = {
    {"drain", drain, METH_VARARGS, "Read everything that is ready."},
    {"watch", watch, METH_VARARGS, "Add a socket to the epoll."},
    {"arrived", arrived, METH_VARARGS, "(at_ns, bound_ns, exact) of one read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_drain", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__drain(void) { return PyModuleDef_Init(&module); }
