/* A record's three arrays, packed and unpacked: `python_arrays.py` says the same in Python, and how.

   What is written are the low bytes of each value, by memcpy: little-endian machines only, as the
   assertion says. `codec.py` refuses a LAYOUT_VERSION other than its own. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define LAYOUT_VERSION 1
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low bytes come first");

/* Integers wrap around as numpy's do: what was read may be anything. */
static int64_t add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t less(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

static int width_of(int64_t least, int64_t most) {
    for (int width = 1; width < 8; width *= 2) {
        int64_t top = (int64_t)1 << (8 * width - 1);
        if (-top <= least && most < top) return width;
    }
    return 8;
}

/* n > 0 values: `c` and the one that all are, or a width and all of them. */
static PyObject *packed(const int64_t *values, Py_ssize_t n) {
    int64_t least = values[0], most = values[0];
    for (Py_ssize_t i = 1; i < n; i++) {
        if (values[i] < least) least = values[i];
        if (values[i] > most) most = values[i];
    }
    int same = least == most, width = same ? 8 : width_of(least, most);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, 1 + (same ? 1 : n) * width);
    if (!bytes) return NULL;
    char *out = PyBytes_AsString(bytes);
    *out++ = same ? 'c' : (char)('0' + width);
    for (Py_ssize_t i = 0; i < (same ? 1 : n); i++, out += width) memcpy(out, values + i, width);
    return bytes;
}

static PyObject *pack_all(int64_t sent_ns, const int64_t *at, const int64_t *low,
                          const int64_t *tokens, Py_ssize_t n) {
    int64_t *gaps = PyMem_Malloc(2 * (size_t)n * sizeof *gaps);
    if (!gaps) return PyErr_NoMemory();
    int64_t *lags = gaps + n;
    for (Py_ssize_t i = 0; i < n; i++) {
        gaps[i] = less(at[i], i ? at[i - 1] : sent_ns);
        lags[i] = less(at[i], low[i]);
    }
    PyObject *all = Py_BuildValue("NNN", packed(gaps, n), packed(lags, n), packed(tokens, n));
    PyMem_Free(gaps);
    return all;
}

/* pack(sent_ns, at_ns, not_before_ns, tokens): int64 each, as many of each. */
static PyObject *pack(PyObject *Py_UNUSED(module), PyObject *args) {
    long long sent_ns;
    Py_buffer at, low, tokens;
    if (!PyArg_ParseTuple(args, "Ly*y*y*", &sent_ns, &at, &low, &tokens)) return NULL;
    Py_ssize_t n = at.len / 8;
    PyObject *all = NULL;
    if (at.len % 8 || low.len != at.len || tokens.len != at.len)
        PyErr_SetString(PyExc_ValueError, "arrays of one length");
    else
        all = n ? pack_all(sent_ns, at.buf, low.buf, tokens.buf, n) : Py_BuildValue("yyy", "", "", "");
    PyBuffer_Release(&at);
    PyBuffer_Release(&low);
    PyBuffer_Release(&tokens);
    return all;
}

static int64_t value(const char *raw, int width) {
    int8_t one;
    int16_t two;
    int32_t four;
    int64_t eight;
    switch (width) {
    case 1: memcpy(&one, raw, 1); return one;
    case 2: memcpy(&two, raw, 2); return two;
    case 4: memcpy(&four, raw, 4); return four;
    default: memcpy(&eight, raw, 8); return eight;
    }
}

/* n values; nonzero if these bytes are not as many. */
static int unpacked(const Py_buffer *from, Py_ssize_t n, int64_t *values) {
    if (!n) return 0;
    const char *raw = from->buf;
    if (!from->len || !memchr("c1248", raw[0], 5)) return -1;
    int same = raw[0] == 'c', width = same ? 8 : raw[0] - '0';
    if ((from->len - 1) % width || (from->len - 1) / width != (same ? 1 : n)) return -1;
    raw++;
    for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw + (same ? 0 : i * width), width);
    return 0;
}

static PyObject *unpack_all(int64_t sent_ns, Py_ssize_t n, const Py_buffer *from) {
    PyObject *all[3] = {NULL, NULL, NULL}, *result = NULL;
    int64_t *values[3] = {NULL, NULL, NULL}, before = sent_ns;
    int bad = 0;
    for (int k = 0; k < 3 && !bad; k++) {
        bad = !(all[k] = PyBytes_FromStringAndSize(NULL, 8 * n));
        if (bad) break;
        values[k] = (int64_t *)PyBytes_AsString(all[k]);
        if ((bad = unpacked(from + k, n, values[k])))
            PyErr_SetString(PyExc_ValueError, "not as many values as events");
    }
    for (Py_ssize_t i = 0; i < n && !bad; i++) {
        before = values[0][i] = add(before, values[0][i]);
        values[1][i] = less(before, values[1][i]);
    }
    if (!bad) result = PyTuple_Pack(3, all[0], all[1], all[2]);
    for (int k = 0; k < 3; k++) Py_XDECREF(all[k]);
    return result;
}

/* unpack(sent_ns, n, at, lags, tokens): the inverse, the bytes of int64; ValueError. */
static PyObject *unpack(PyObject *Py_UNUSED(module), PyObject *args) {
    long long sent_ns;
    Py_ssize_t n;
    Py_buffer from[3];
    if (!PyArg_ParseTuple(args, "Lny*y*y*", &sent_ns, &n, from, from + 1, from + 2)) return NULL;
    PyObject *all = NULL;
    if (n < 0 || n > PY_SSIZE_T_MAX / 16)
        PyErr_SetString(PyExc_ValueError, "no such number of events");
    else
        all = unpack_all(sent_ns, n, from);
    for (int k = 0; k < 3; k++) PyBuffer_Release(from + k);
    return all;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_VARARGS, "A record's arrays in the fewest bytes."},
    {"unpack", unpack, METH_VARARGS, "And back."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    return PyModule_AddIntConstant(module, "LAYOUT", LAYOUT_VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_arrays", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__arrays(void) { return PyModuleDef_Init(&module); }
