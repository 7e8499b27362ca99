/* One round of the reader in one call: what is ready, all of it read, with the kernel's stamps.

   The Python beside it (`backends.PythonReader` and the modules that `_lane.h` names) does the same and is
   what says why. This does it for a fifth of the CPU time, without the interpreter's lock while it
   reads.

   Every connection that is watched has a lane: cells that Python allocates and shares (`_lane.h`,
   `fast_path.py`). Of a read that holds nothing but whole events in whole chunks, rows for the decoder
   are made here; any other read (the head, the end, half an event, an error) is handed to Python as
   it is. What comes over TLS is, too: Python has the keys, and gives back what it decrypted (`take`).

   A thread reads in place of a loop that is late: users keep it busy, and events that lie unread
   run into one another. What the thread read waits here for the loop's next round, in order: once a
   read of a lane is handed over, all are until Python has seen them.

   The lock. It guards everything in `struct drain` and all cells of all lanes. Each round is read
   under it, by either thread; Python holds it from the beginning of its round until it has worked
   off what it was handed (`CReader.read` to `over`), and around each change of a lane: hence it
   is recursive. The thread only ever tries it, so it can make nobody wait for Python; whoever waits
   for it lets go of the interpreter's lock first, so the two locks cannot wait for one another.

   Row for the decoder, five int64: stream, at_ns, bound_ns, kind, and for bytes (kind 0, exact: 1)
   how many follow in `blob`; for a token (kind 4, exact: 5) its running count, or -1. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "_lane.h"

#define MORE (EPOLLRDHUP | EPOLLHUP | EPOLLERR) /* behind what is read, its end */
#define WATCHED (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define MOST_WAITING (256 << 20)  /* bytes: then the thread leaves the rest to the kernel */
#define QUIET_NS 20000000         /* how often the thread looks when nothing is watched */

struct buffer { char *data; size_t size, room; };

struct drain {
    PyObject_HEAD
    pthread_mutex_t lock;
    int epoll, wake_fd; /* an eventfd in the epoll: the thread has read something */
    Py_buffer **cells;  /* of the lane of each descriptor, NULL where none is watched */
    size_t n_cells;
    int n_watched, n_ready, no_memory;
    struct poll_round round;
    struct buffer events, scratch;
    struct buffer taken;                     /* rows of a decrypted read */
    struct buffer rows, blob, reads, handed; /* until Python takes them; data of `reads` in `handed` */
    long n_reads, n_stamped;
    int64_t n_bytes, latest_ns;
    pthread_t thread;
    pid_t pid;       /* the thread's process: a child that was forked has no such thread */
    int64_t late_ns; /* since the last round: then the thread reads; 0: no thread */
    int stop;
};

/* ---- one round, by either thread; under the lock and without the interpreter's */

/* Room for `more` bytes behind what is there; 0 when there is no memory. */
static int room_for(struct buffer *buffer, size_t more) {
    if (buffer->size + more <= buffer->room) return 1;
    size_t room = 2 * (buffer->size + more);
    char *data = realloc(buffer->data, room);
    if (!data) return 0;
    buffer->data = data;
    buffer->room = room;
    return 1;
}

static void append(struct buffer *buffer, const void *data, size_t size) {
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

/* The epoll is edge-triggered: it tells of a socket when something comes, not while something is
   there. Whoever leaves anything unread behind (no memory, a read that was filled, an end that
   follows the data) has to have the edge told again, or that socket is never heard of again. */
static void rearm(struct drain *self, int fd) {
    struct epoll_event event = {.events = WATCHED, .data.fd = fd};
    epoll_ctl(self->epoll, EPOLL_CTL_MOD, fd, &event);
}

static struct lane *lane_of(struct drain *self, int fd) {
    if (fd < 0 || (size_t)fd >= self->n_cells || !self->cells[fd]) return NULL;
    return self->cells[fd]->buf;
}

static void file_read(struct drain *self, struct lane *lane, struct socket_read *read) {
    if (read->size) {
        self->n_reads++;
        self->n_stamped += read->stamped;
        self->n_bytes += read->size;
        if (read->at_ns > self->latest_ns) self->latest_ns = read->at_ns;
    }
    if (!read->handed) {
        size_t n = lane_rows(lane, read, (struct row *)(self->rows.data + self->rows.size));
        self->rows.size += n * sizeof(struct row);
        read->handed = n == 0;
    }
    if (read->handed) {
        lane->waiting++;
        append(&self->handed, read->data, (size_t)read->size);
        append(&self->reads, read, sizeof *read);
    } else {
        append(&self->blob, read->data, (size_t)read->size);
    }
}

/* Poll, and read each ready socket once. `from_thread`: so Python is to be told. */
static void one_round(struct drain *self, int from_thread) {
    size_t bytes = self->round.read_bytes;
    int most = self->n_watched + 2; /* never full, so what is not listed is empty */
    self->n_ready = 0;
    if (!room_for(&self->events, (size_t)most * sizeof(struct epoll_event)) ||
        !room_for(&self->scratch, bytes)) {
        self->no_memory = 1;
        return;
    }
    struct epoll_event *events = (struct epoll_event *)self->events.data;
    self->round.number++;
    self->round.before_ns = self->round.polled_ns;
    self->round.polled_ns = clock_ns(self->round.anchor_ns);
    int ready = epoll_wait(self->epoll, events, most, 0); /* -1: a signal: the next round sees them */
    for (int i = 0; i < ready; i++) {
        int fd = events[i].data.fd;
        struct lane *lane = lane_of(self, fd);
        if (!lane) continue; /* the wake_fd, or dropped since */
        if (!room_for(&self->rows, (bytes / SHORTEST_CHUNK + 1) * sizeof(struct row)) ||
            !room_for(&self->blob, bytes) || !room_for(&self->handed, bytes) ||
            !room_for(&self->reads, sizeof(struct socket_read))) {
            self->no_memory = 1;
            rearm(self, fd);
            continue;
        }
        /* Before the first is read: whoever asks whether the epoll is idle (`Poller.known_ns`) must
           never find it so while reads lie here that Python has not seen. */
        if (from_thread && !self->n_ready) {
            uint64_t one = 1;
            if (write(self->wake_fd, &one, sizeof one) < 0) return; /* never: it counts to 2^64 */
        }
        self->n_ready++;
        struct socket_read found = {.fd = fd, .data = self->scratch.data};
        if (!lane_receive(lane, &self->round, &found)) continue;
        if (found.size && ((size_t)found.size == bytes || events[i].events & MORE)) rearm(self, fd);
        file_read(self, lane, &found);
    }
}

/* ---- the thread that reads in place of a late loop */

static void *backup_thread(void *argument) {
    struct drain *self = argument;
    while (!__atomic_load_n(&self->stop, __ATOMIC_RELAXED)) {
        int64_t wait_ns = self->late_ns / 4;
        if (!pthread_mutex_trylock(&self->lock)) {
            int64_t since_ns = clock_ns(self->round.anchor_ns) - self->round.polled_ns;
            size_t waiting = self->rows.size + self->blob.size + self->handed.size;
            wait_ns = self->late_ns;
            if (!self->n_watched) wait_ns = QUIET_NS;
            else if (since_ns < self->late_ns) wait_ns -= since_ns > 0 ? since_ns : 0;
            else if (waiting < MOST_WAITING) one_round(self, 1);
            pthread_mutex_unlock(&self->lock);
        }
        struct timespec wait = {.tv_sec = 0, .tv_nsec = wait_ns};
        nanosleep(&wait, NULL);
    }
    return NULL;
}

/* ---- Python's side */

/* Append to a bytearray of Python's, and forget it here; -1 with an exception. */
static int move_to_bytearray(struct buffer *from, PyObject *array) {
    if (!from->size) return 0;
    Py_ssize_t old = PyByteArray_Size(array);
    if (PyByteArray_Resize(array, old + (Py_ssize_t)from->size)) return -1;
    memcpy(PyByteArray_AsString(array) + old, from->data, from->size);
    from->size = 0;
    return 0;
}

/* What is left to Python: a list of (descriptor, data, at_ns, bound_ns, exact, errno), without data
   where the connection ended. From now on it is Python that keeps the order. */
static PyObject *take_reads(struct drain *self) {
    PyObject *list = PyList_New(0);
    char *data = self->handed.data;
    struct socket_read *one = (struct socket_read *)self->reads.data;
    struct socket_read *end = (struct socket_read *)(self->reads.data + self->reads.size);
    for (; one < end; data += one++->size) {
        struct lane *lane = lane_of(self, one->fd);
        if (!lane) continue; /* its connection is gone */
        lane->waiting = 0;
        if (!list) continue;
        PyObject *item = Py_BuildValue("iy#LLOi", one->fd, data, (Py_ssize_t)one->size,
                                       (long long)one->at_ns, (long long)one->bound_ns,
                                       one->exact ? Py_True : Py_False, one->code);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    self->reads.size = self->handed.size = 0;
    return list;
}

/* take(fd, data, at_ns, bound_ns, exact, rows, blob): of a read that was handed over and decrypted;
   whether rows were made of it, and Python need not see it. The lock must be held. */
static PyObject *drain_take(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    PyObject *rows, *blob;
    const char *data;
    long long at_ns, bound_ns;
    struct socket_read read = {0};
    if (!PyArg_ParseTuple(args, "iy#LLpO!O!", &read.fd, &data, &read.size, &at_ns, &bound_ns,
                          &read.exact, &PyByteArray_Type, &rows, &PyByteArray_Type, &blob))
        return NULL;
    struct lane *lane = lane_of(self, read.fd);
    if (!lane || lane->owner <= PYTHON) Py_RETURN_FALSE;
    /* `rows` and `blob` of this object may hold what the thread has read since: not ours to add to. */
    size_t size = (size_t)read.size, most = size / SHORTEST_CHUNK + 1;
    if (!room_for(&self->scratch, size) || !room_for(&self->taken, most * sizeof(struct row)))
        return PyErr_NoMemory();
    memcpy(self->scratch.data, data, size); /* `lane_rows` moves bytes in place */
    read.data = self->scratch.data;
    read.at_ns = at_ns;
    read.bound_ns = bound_ns;
    size_t n = lane_rows(lane, &read, (struct row *)self->taken.data);
    if (!n) Py_RETURN_FALSE;
    self->taken.size = n * sizeof(struct row);
    self->scratch.size = (size_t)read.size;
    int failed = move_to_bytearray(&self->taken, rows) || move_to_bytearray(&self->scratch, blob);
    self->taken.size = self->scratch.size = 0;
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

static PyObject *drain_lock(PyObject *object, PyObject *Py_UNUSED(args)) {
    struct drain *self = (struct drain *)object;
    if (pthread_mutex_trylock(&self->lock)) { /* the thread is reading: let others run meanwhile */
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&self->lock);
        Py_END_ALLOW_THREADS
    }
    Py_INCREF(object);
    return object;
}

static PyObject *drain_unlock(PyObject *object, PyObject *Py_UNUSED(args)) {
    pthread_mutex_unlock(&((struct drain *)object)->lock);
    Py_RETURN_NONE;
}

/* (ready, reads, stamped reads, bytes, latest at_ns, reads left to Python): of this round, and of
   what the thread has read since the one before. The lock must be held. */
static PyObject *drain_round(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    PyObject *rows, *blob;
    if (!PyArg_ParseTuple(args, "O!O!", &PyByteArray_Type, &rows, &PyByteArray_Type, &blob))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    one_round(self, 0);
    uint64_t woken;
    if (read(self->wake_fd, &woken, sizeof woken) > 0) self->n_ready++;
    Py_END_ALLOW_THREADS
    if (self->no_memory) {
        self->no_memory = 0;
        return PyErr_NoMemory();
    }
    if (move_to_bytearray(&self->rows, rows) || move_to_bytearray(&self->blob, blob)) return NULL;
    PyObject *others = take_reads(self);
    if (!others) return NULL;
    PyObject *result = Py_BuildValue("illLLN", self->n_ready, self->n_reads, self->n_stamped,
                                     (long long)self->n_bytes, (long long)self->latest_ns, others);
    self->n_reads = self->n_stamped = self->n_bytes = self->latest_ns = 0;
    return result;
}

/* What is believed of stamps from here on. */
static PyObject *drain_trust(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    long long offset_ns;
    if (!PyArg_ParseTuple(args, "Lp", &offset_ns, &self->round.trust_stamps)) return NULL;
    self->round.offset_ns = offset_ns;
    Py_RETURN_NONE;
}

/* Room in `cells` for this descriptor; 0 when there is no memory. */
static int grow_cells(struct drain *self, size_t fd) {
    if (fd < self->n_cells) return 1;
    size_t n = 2 * fd + 64;
    Py_buffer **cells = realloc(self->cells, n * sizeof *cells);
    if (!cells) return 0;
    memset(cells + self->n_cells, 0, (n - self->n_cells) * sizeof *cells);
    self->cells = cells;
    self->n_cells = n;
    return 1;
}

static void release_cells(struct drain *self, int fd) {
    PyBuffer_Release(self->cells[fd]);
    PyMem_Free(self->cells[fd]);
    self->cells[fd] = NULL;
}

/* watch(fd, cells): the return is the round in which it has nothing to read. The epoll tells only
   of a change: a socket that was drained would be looked at twice for each event else. */
static PyObject *drain_watch(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    int fd;
    Py_buffer given;
    if (!PyArg_ParseTuple(args, "iw*", &fd, &given)) return NULL;
    Py_buffer *cells = PyMem_Malloc(sizeof *cells);
    if (!cells || fd < 0 || given.len != sizeof(struct lane) || lane_of(self, fd) ||
        !grow_cells(self, (size_t)fd)) {
        PyErr_Format(PyExc_ValueError, "descriptor %d: expected one that is not watched, and %d bytes",
                     fd, (int)sizeof(struct lane));
        PyMem_Free(cells);
        PyBuffer_Release(&given);
        return NULL;
    }
    *cells = given;
    self->cells[fd] = cells;
    struct epoll_event event = {.events = WATCHED, .data.fd = fd};
    if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event)) {
        release_cells(self, fd);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->n_watched++;
    return PyLong_FromLongLong(self->round.number);
}

/* Its descriptor is about to become another's: nothing that was read of it is handed over. */
static PyObject *drain_forget(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    if (!lane_of(self, fd)) Py_RETURN_NONE;
    struct socket_read *end = (struct socket_read *)(self->reads.data + self->reads.size);
    for (struct socket_read *one = (struct socket_read *)self->reads.data; one < end; one++)
        if (one->fd == fd) one->fd = -1;
    release_cells(self, fd);
    self->n_watched--;
    Py_RETURN_NONE;
}

static void stop_thread(struct drain *self) {
    /* A child that was forked has a copy of this object and not the thread: to join would wait for
       ever. The reader starts after the last fork; this is for whoever forks later. */
    if (!self->late_ns || self->pid != getpid()) return;
    __atomic_store_n(&self->stop, 1, __ATOMIC_RELAXED);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    self->late_ns = 0;
}

static PyObject *drain_close(PyObject *self, PyObject *Py_UNUSED(args)) {
    stop_thread((struct drain *)self);
    Py_RETURN_NONE;
}

/* Drain(epoll, read_bytes, anchor_ns, offset_ns, late_ns): the thread reads where there has been no
   round for so long; 0: there is no thread. */
static PyObject *drain_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    int epoll;
    Py_ssize_t read_bytes;
    long long anchor_ns, offset_ns, late_ns;
    if (!PyArg_ParseTuple(args, "inLLL", &epoll, &read_bytes, &anchor_ns, &offset_ns, &late_ns))
        return NULL;
    struct drain *self = PyObject_New(struct drain, type);
    if (!self) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->epoll = epoll;
    self->round.polled_ns = clock_ns(anchor_ns);
    self->round.anchor_ns = anchor_ns;
    self->round.offset_ns = offset_ns;
    self->round.read_bytes = (size_t)read_bytes;
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&self->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = self->wake_fd};
    int failed = self->wake_fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, self->wake_fd, &event);
    if (!failed && late_ns) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are Python's */
        self->late_ns = late_ns;
        self->pid = getpid();
        errno = pthread_create(&self->thread, NULL, backup_thread, self);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if ((failed = errno != 0)) self->late_ns = 0;
    }
    if (!failed) return (PyObject *)self;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static void drain_dealloc(PyObject *object) {
    struct drain *self = (struct drain *)object;
    PyTypeObject *type = Py_TYPE(object);
    stop_thread(self);
    if (self->wake_fd >= 0) close(self->wake_fd);
    for (size_t fd = 0; fd < self->n_cells; fd++)
        if (self->cells[fd]) release_cells(self, (int)fd);
    free(self->cells);
    struct buffer *all[] = {&self->events, &self->scratch, &self->rows, &self->blob, &self->reads,
                            &self->handed, &self->taken};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    pthread_mutex_destroy(&self->lock);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef drain_methods[] = {
    {"__enter__", drain_lock, METH_NOARGS, "Neither lanes nor sockets change until it is unlocked."},
    {"__exit__", drain_unlock, METH_VARARGS, "As often as it was locked."},
    {"lock", drain_lock, METH_NOARGS, "As `with` does."},
    {"unlock", drain_unlock, METH_NOARGS, "As often as it was locked."},
    {"round", drain_round, METH_VARARGS, "Read everything that is ready."},
    {"take", drain_take, METH_VARARGS, "Make rows of a read that was decrypted, if it is events."},
    {"trust", drain_trust, METH_VARARGS, "What is believed of stamps from here on."},
    {"watch", drain_watch, METH_VARARGS, "Add a socket to the epoll; the number of the round."},
    {"forget", drain_forget, METH_VARARGS, "Drop what was read of a socket."},
    {"close", drain_close, METH_NOARGS, "End the thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot drain_slots[] = {
    {Py_tp_new, drain_new}, {Py_tp_dealloc, drain_dealloc}, {Py_tp_methods, drain_methods},
    {Py_tp_doc, "The sockets of one epoll."}, {0, NULL},
};

static PyType_Spec drain_spec = {
    "harness.reader._drain.Drain", sizeof(struct drain), 0, Py_TPFLAGS_DEFAULT, drain_slots,
};

/* What this file was compiled with: `reader.fast_path.LAYOUT` must say the same. */
static PyObject *layout(void) {
#define CELL(name) (int)(offsetof(struct lane, name) / sizeof(int64_t))
    return Py_BuildValue(
        "{s:i,s:i,s:(iiii),s:(iiiiiiiiiiiii),s:(iiii),s:(ii),s:y,s:y,s:y,s:y,s:y,s:y,s:y,s:y,s:y}",
        "version", LAYOUT_VERSION, "lane_cells", LANE_CELLS,
        "owners", IDLE, PYTHON, LEARNING, EVENTS,
        "cells", CELL(owner), CELL(stream), CELL(drained_ns), CELL(last_ns), CELL(round),
        CELL(body_ns), CELL(n_bytes), CELL(before_size), CELL(rest_size), CELL(waiting), CELL(sealed),
        CELL(counted), CELL(shape),
        "row", BYTES, EXACT, TOKEN, (int)sizeof(struct row),
        "numbers", ANY_NUMBER, RUNNING_COUNT,
        "data", DATA, "event_end", EVENT_END, "chunk_end", CHUNK_END, "done", DONE,
        "error_key", ERROR_KEY, "abort", ABORT, "choices_key", CHOICES_KEY, "delta_key", DELTA_KEY,
        "count_key", COUNT_KEY);
#undef CELL
}

static int prepare(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &drain_spec, NULL), *says = layout();
    int failed = !type || !says || PyModule_AddObjectRef(module, "Drain", type) ||
                 PyModule_AddObjectRef(module, "LAYOUT", says);
    Py_XDECREF(type);
    Py_XDECREF(says);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_drain", .m_size = 0, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__drain(void) { return PyModuleDef_Init(&module); }
