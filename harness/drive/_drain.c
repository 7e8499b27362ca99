/* One round of the reader in one call: what is ready, all of it read, with the kernel's stamps.

   The Python beside it (`plainreads`, `wire.stamps`, `wire.alike`) does the same and is what says
   why. This does it for a fifth of the CPU time, without the interpreter's lock while it reads.

   Every connection has a lane: a row of LANE_CELLS int64 in a table that Python owns, at the index
   of its file descriptor (`lanes.py` has the same constants). Of a read that holds nothing but
   whole events in whole chunks, rows for the decoder are made here; any other read (the head, the
   end, half an event, an error, TLS) is handed to Python as it is.

   A thread stands in for a loop that is late: users keep it busy, and events that lie unread run
   into one another. What it read waits here for the loop's next round, in order: once a read of a
   lane is handed over, all are until Python has seen them. The lock is held through each round, and
   by Python from its round's beginning until it has worked that off.

   Row for the decoder, five int64: stream, at_ns, bound_ns, kind, and for bytes (kind 0, exact: 1)
   how many follow in `blob`; for a token (kind 4, exact: 5) its running count, or -1. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
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
    int epoll, bell; /* the bell is an eventfd in the epoll: the thread has read something */
    Py_buffer table;
    struct lane *lanes;
    size_t n_lanes;
    int n_watched, n_ready, no_memory;
    struct round round;
    struct buffer events, scratch;
    struct buffer rows, blob, reads, handed; /* until Python takes them; data of `reads` in `handed` */
    long n_reads, n_stamped;
    int64_t n_bytes, latest_ns;
    pthread_t thread;
    int64_t patience_ns; /* 0: no thread */
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

/* An edge is told once: have it told again. */
static void again(struct drain *self, int fd) {
    struct epoll_event event = {.events = WATCHED, .data.fd = fd};
    epoll_ctl(self->epoll, EPOLL_CTL_MOD, fd, &event);
}

static void keep(struct drain *self, struct lane *lane, struct read *read) {
    if (read->size) {
        self->n_reads++;
        self->n_stamped += read->stamped;
        self->n_bytes += read->size;
        if (read->at_ns > self->latest_ns) self->latest_ns = read->at_ns;
    }
    if (!read->handed) {
        size_t n = rows_of(lane, read, (struct row *)(self->rows.data + self->rows.size));
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

/* Poll, and read each ready socket once. `aside`: by the thread, so Python is to be told. */
static void one_round(struct drain *self, int aside) {
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
        if (fd == self->bell || fd < 0 || (size_t)fd >= self->n_lanes) continue;
        struct lane *lane = &self->lanes[fd];
        if (lane->mode == CLOSED) continue;
        if (!room_for(&self->rows, (bytes / LEAST_CHUNK + 1) * sizeof(struct row)) ||
            !room_for(&self->blob, bytes) || !room_for(&self->handed, bytes) ||
            !room_for(&self->reads, sizeof(struct read))) {
            self->no_memory = 1;
            again(self, fd);
            continue;
        }
        if (aside && !self->n_ready) { /* before the first is read: the epoll never looks idle */
            uint64_t one = 1;
            if (write(self->bell, &one, sizeof one) < 0) return; /* never: it counts to 2^64 */
        }
        self->n_ready++;
        struct read read = {.fd = fd, .data = self->scratch.data};
        if (!read_one(lane, &self->round, &read)) continue;
        if (read.size && ((size_t)read.size == bytes || events[i].events & MORE)) again(self, fd);
        keep(self, lane, &read);
    }
}

/* ---- the thread that stands in */

static void *stand_in(void *argument) {
    struct drain *self = argument;
    while (!__atomic_load_n(&self->stop, __ATOMIC_RELAXED)) {
        int64_t wait_ns = self->patience_ns / 4;
        if (!pthread_mutex_trylock(&self->lock)) {
            int64_t late_ns = clock_ns(self->round.anchor_ns) - self->round.polled_ns;
            size_t waiting = self->rows.size + self->blob.size + self->handed.size;
            wait_ns = self->patience_ns;
            if (!self->n_watched) wait_ns = QUIET_NS;
            else if (late_ns < self->patience_ns) wait_ns -= late_ns > 0 ? late_ns : 0;
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
static int give(struct buffer *from, PyObject *array) {
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
    struct read *read = (struct read *)self->reads.data;
    struct read *end = (struct read *)(self->reads.data + self->reads.size);
    for (; list && read < end; data += read++->size) {
        if (read->fd < 0) continue; /* its connection is gone */
        self->lanes[read->fd].waiting = 0;
        PyObject *one = Py_BuildValue("iy#LLOi", read->fd, data, (Py_ssize_t)read->size,
                                      (long long)read->at_ns, (long long)read->bound_ns,
                                      read->exact ? Py_True : Py_False, read->code);
        if (!one || PyList_Append(list, one)) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    self->reads.size = self->handed.size = 0;
    return list;
}

static PyObject *drain_lock(PyObject *self, PyObject *Py_UNUSED(args)) {
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&((struct drain *)self)->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *drain_unlock(PyObject *self, PyObject *Py_UNUSED(args)) {
    pthread_mutex_unlock(&((struct drain *)self)->lock);
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
    uint64_t rung;
    if (read(self->bell, &rung, sizeof rung) > 0) self->n_ready++;
    Py_END_ALLOW_THREADS
    if (self->no_memory) {
        self->no_memory = 0;
        return PyErr_NoMemory();
    }
    if (give(&self->rows, rows) || give(&self->blob, blob)) return NULL;
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
    if (!PyArg_ParseTuple(args, "Lp", &offset_ns, &self->round.believe)) return NULL;
    self->round.offset_ns = offset_ns;
    Py_RETURN_NONE;
}

/* Only of a change: a socket that was drained would be looked at twice for each event else.
   The return is the round in which it has nothing to read. */
static PyObject *drain_watch(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    struct epoll_event event = {.events = WATCHED, .data.fd = fd};
    if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event)) return PyErr_SetFromErrno(PyExc_OSError);
    self->n_watched++;
    return PyLong_FromLongLong(self->round.number);
}

/* Its descriptor is about to become another's: nothing that was read of it is handed over. */
static PyObject *drain_forget(PyObject *object, PyObject *args) {
    struct drain *self = (struct drain *)object;
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    struct read *end = (struct read *)(self->reads.data + self->reads.size);
    for (struct read *read = (struct read *)self->reads.data; read < end; read++)
        if (read->fd == fd) read->fd = -1;
    self->n_watched--;
    Py_RETURN_NONE;
}

static void halt(struct drain *self) {
    if (!self->patience_ns) return;
    __atomic_store_n(&self->stop, 1, __ATOMIC_RELAXED);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    self->patience_ns = 0;
}

static PyObject *drain_close(PyObject *self, PyObject *Py_UNUSED(args)) {
    halt((struct drain *)self);
    Py_RETURN_NONE;
}

/* Drain(epoll, table, read_bytes, anchor_ns, offset_ns, patience_ns): the thread reads where there
   has been no round for so long; 0: there is no thread. */
static PyObject *drain_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    int epoll;
    Py_ssize_t read_bytes;
    long long anchor_ns, offset_ns, patience_ns;
    Py_buffer table;
    if (!PyArg_ParseTuple(args, "iw*nLLL", &epoll, &table, &read_bytes, &anchor_ns, &offset_ns,
                          &patience_ns)) return NULL;
    struct drain *self = PyObject_New(struct drain, type);
    if (!self) {
        PyBuffer_Release(&table);
        return NULL;
    }
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->table = table;
    self->lanes = table.buf;
    self->n_lanes = (size_t)table.len / sizeof(struct lane);
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
    self->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = self->bell};
    int failed = self->bell < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, self->bell, &event);
    if (!failed && patience_ns) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are Python's */
        self->patience_ns = patience_ns;
        errno = pthread_create(&self->thread, NULL, stand_in, self);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if ((failed = errno != 0)) self->patience_ns = 0;
    }
    if (!failed) return (PyObject *)self;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static void drain_dealloc(PyObject *object) {
    struct drain *self = (struct drain *)object;
    PyTypeObject *type = Py_TYPE(object);
    halt(self);
    if (self->bell >= 0) close(self->bell);
    struct buffer *all[] = {&self->events, &self->scratch, &self->rows, &self->blob, &self->reads,
                            &self->handed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    PyBuffer_Release(&self->table);
    pthread_mutex_destroy(&self->lock);
    PyObject_Free(object);
    Py_DECREF(type);
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

static PyMethodDef drain_methods[] = {
    {"lock", drain_lock, METH_NOARGS, "Neither lanes nor sockets change until it is unlocked."},
    {"unlock", drain_unlock, METH_NOARGS, "As often as it was locked."},
    {"round", drain_round, METH_VARARGS, "Read everything that is ready."},
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
    "harness.drive._drain.Drain", sizeof(struct drain), 0, Py_TPFLAGS_DEFAULT, drain_slots,
};

static PyMethodDef methods[] = {
    {"arrived", arrived, METH_VARARGS, "(at_ns, bound_ns, exact) of one read."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &drain_spec, NULL);
    int failed = !type || PyModule_AddObjectRef(module, "Drain", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_drain", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__drain(void) { return PyModuleDef_Init(&module); }
