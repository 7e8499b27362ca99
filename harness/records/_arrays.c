/* A record's three arrays, packed and unpacked: `python_arrays.py` says the same in Python, and how.

   What is written are the low bytes of each value, by memcpy: little-endian machines only, as the
   assertion says. `codec.py` refuses a LAYOUT_VERSION other than its own. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define LAYOUT_VERSION 6
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

/* Whether these bytes are n packed values. */
static int is_packed(const char *raw, Py_ssize_t len, Py_ssize_t n) {
    if (!n) return 1;
    if (len < 1 || !memchr("c1248", raw[0], 5)) return 0;
    int same = raw[0] == 'c', width = same ? 8 : raw[0] - '0';
    return (len - 1) % width == 0 && (len - 1) / width == (same ? 1 : n);
}

/* n values of bytes that `is_packed`. One loop for each width: a compiler makes vectors of it. */
static void unpacked(const char *raw, Py_ssize_t n, int64_t *values) {
    if (!n) return;
    int width = raw[0] == 'c' ? 0 : raw[0] - '0';
    raw++;
    if (width == 0)
        for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw, 8);
    else if (width == 1)
        for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw + i, 1);
    else if (width == 2)
        for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw + 2 * i, 2);
    else if (width == 4)
        for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw + 4 * i, 4);
    else
        for (Py_ssize_t i = 0; i < n; i++) values[i] = value(raw + 8 * i, 8);
}

/* Gaps and lags, in place, become times and bounds. */
static void summed(int64_t sent_ns, Py_ssize_t n, int64_t *at, int64_t *low) {
    int64_t before = sent_ns;
    for (Py_ssize_t i = 0; i < n; i++) {
        before = at[i] = add(before, at[i]);
        low[i] = less(before, low[i]);
    }
}

static PyObject *unpack_all(int64_t sent_ns, Py_ssize_t n, const Py_buffer *from) {
    PyObject *all[3] = {NULL, NULL, NULL}, *result = NULL;
    int64_t *values[3] = {NULL, NULL, NULL};
    for (int k = 0; k < 3; k++) {
        if (!is_packed(from[k].buf, from[k].len, n)) {
            PyErr_SetString(PyExc_ValueError, "not as many values as events");
            goto done;
        }
        all[k] = PyBytes_FromStringAndSize(NULL, 8 * n);
        if (!all[k]) goto done;
        values[k] = (int64_t *)PyBytes_AsString(all[k]);
        unpacked(from[k].buf, n, values[k]);
    }
    summed(sent_ns, n, values[0], values[1]);
    result = PyTuple_Pack(3, all[0], all[1], all[2]);
done:
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

/* A frame as a row of int64 cells, as `ROW_CELLS` in `codec.py` says: first the numbers of a record
   in their order on disk, then the code of its outcome, its number of events, and where in the data
   its texts and packed arrays lie (from, length: two cells each). */
enum { NUMBERS = 15, LATER = 9, TEXTS = 3, ARRAYS = 3 };
enum {
    OUTCOME_CELL = NUMBERS + LATER,
    EVENTS_CELL,
    TEXT_CELLS,                            /* error, finish reason, name */
    ARRAY_CELLS = TEXT_CELLS + 2 * TEXTS,  /* times, lags, tokens */
    ROW_CELLS = ARRAY_CELLS + 2 * ARRAYS,
};
enum { HEADER_BYTES = 12, MAX_EVENTS = 1 << 20, MAX_PAYLOAD_BYTES = 1 << 25 };
enum { SENT_CELL = 5 };
enum { VALUES = NUMBERS + 1 + 2 + 1 + ARRAYS + LATER }; /* of a payload, and one more with a name */

/* What is left of a payload; `at` is NULL once something else came than was expected. */
typedef struct {
    const unsigned char *at, *end;
} Reader;

/* Big-endian, as msgpack's numbers are. */
static uint64_t big(const unsigned char *at, int width) {
    uint64_t number = 0;
    for (int i = 0; i < width; i++) number = number << 8 | at[i];
    return number;
}

/* So many bytes, or NULL. */
static const unsigned char *bytes_of(Reader *reader, uint64_t n) {
    const unsigned char *here = reader->at;
    if (!here || n > (uint64_t)(reader->end - here)) return reader->at = NULL;
    reader->at = here + n;
    return here;
}

static uint64_t number_of(Reader *reader, int width) {
    const unsigned char *here = bytes_of(reader, (uint64_t)width);
    return here ? big(here, width) : 0;
}

static int64_t integer_of(Reader *reader) {
    const unsigned char *kind = bytes_of(reader, 1);
    if (!kind) return 0;
    if (*kind < 0x80) return *kind;
    if (*kind >= 0xe0) return (int8_t)*kind;
    uint64_t number;
    switch (*kind) {
    case 0xcc: return (int64_t)number_of(reader, 1);
    case 0xcd: return (int64_t)number_of(reader, 2);
    case 0xce: return (int64_t)number_of(reader, 4);
    case 0xcf:
        number = number_of(reader, 8);
        if (number > INT64_MAX) reader->at = NULL;
        return (int64_t)number;
    case 0xd0: return (int8_t)number_of(reader, 1);
    case 0xd1: return (int16_t)number_of(reader, 2);
    case 0xd2: return (int32_t)number_of(reader, 4);
    case 0xd3: return (int64_t)number_of(reader, 8);
    default: reader->at = NULL; return 0;
    }
}

/* A text or bytes: where they lie in the data, and how many. `first` is the kind with a length of
   one byte; those of two and of four follow it. */
static void span_of(Reader *reader, int first, int fixed, const char *data, int64_t *cells) {
    const unsigned char *kind = bytes_of(reader, 1);
    if (!kind) return;
    uint64_t n = 0;
    if (fixed && (*kind & 0xe0) == 0xa0)
        n = *kind & 0x1f;
    else if (*kind >= first && *kind < first + 3)
        n = number_of(reader, 1 << (*kind - first));
    else
        reader->at = NULL;
    const unsigned char *here = bytes_of(reader, n);
    if (!here) return;
    cells[0] = (const char *)here - data;
    cells[1] = (int64_t)n;
}

static int is_ascii(const char *text, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (text[i] & 0x80) return 0;
    return 1;
}

/* A text in UTF-8: where it lies. */
static void text_of(Reader *reader, const char *data, int64_t *cells) {
    span_of(reader, 0xd9, 1, data, cells);
    if (!reader->at || is_ascii(data + cells[0], cells[1])) return;
    PyObject *text = PyUnicode_DecodeUTF8(data + cells[0], (Py_ssize_t)cells[1], NULL);
    if (!text) {
        PyErr_Clear();
        reader->at = NULL;
    }
    Py_XDECREF(text);
}

static void outcome_of(Reader *reader, const char *data, PyObject *outcomes, int64_t *cell) {
    int64_t span[2];
    text_of(reader, data, span);
    Py_ssize_t known = PyTuple_Size(outcomes);
    for (Py_ssize_t code = 0; reader->at && code < known; code++) {
        PyObject *outcome = PyTuple_GetItem(outcomes, code);
        if (PyBytes_Size(outcome) == span[1] &&
            !memcmp(PyBytes_AsString(outcome), data + span[0], (size_t)span[1])) {
            *cell = code;
            return;
        }
    }
    reader->at = NULL;
}

/* Whether the payload is a record as `codec.encode` writes it now, which then is in `row`. */
static int row_of(const char *data, const char *payload, Py_ssize_t size, PyObject *outcomes,
                  int64_t *row) {
    const unsigned char *begin = (const unsigned char *)payload;
    Reader reader = {begin, begin + size};
    if (number_of(&reader, 1) != 0xdc) return 0;
    uint64_t values = number_of(&reader, 2);
    if (values != VALUES && values != VALUES + 1) return 0;
    for (int i = 0; i < NUMBERS; i++) row[i] = integer_of(&reader);
    outcome_of(&reader, data, outcomes, row + OUTCOME_CELL);
    text_of(&reader, data, row + TEXT_CELLS);
    text_of(&reader, data, row + TEXT_CELLS + 2);
    int64_t n = row[EVENTS_CELL] = integer_of(&reader);
    if (n < 0 || n > MAX_EVENTS) return 0;
    for (int k = 0; k < ARRAYS && reader.at; k++) {
        int64_t *span = row + ARRAY_CELLS + 2 * k;
        span_of(&reader, 0xc4, 0, data, span);
        if (reader.at && !is_packed(data + span[0], (Py_ssize_t)span[1], (Py_ssize_t)n)) return 0;
    }
    for (int i = 0; i < LATER; i++) row[NUMBERS + i] = integer_of(&reader);
    row[TEXT_CELLS + 4] = row[TEXT_CELLS + 5] = 0;
    if (values > VALUES) text_of(&reader, data, row + TEXT_CELLS + 4);
    return reader.at == reader.end;
}

/* 1: the payload has this checksum; 0: another; -1: an exception. */
static int is_sound(PyObject *crc32, const char *payload, Py_ssize_t size, uint64_t wanted) {
    PyObject *view = PyMemoryView_FromMemory((char *)payload, size, PyBUF_READ);
    if (!view) return -1;
    PyObject *found = PyObject_CallFunctionObjArgs(crc32, view, NULL);
    Py_DECREF(view);
    if (!found) return -1;
    unsigned long long number = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    if (PyErr_Occurred()) return -1;
    return number == wanted;
}

/* The length of the usual frame at `at`, whose row is then filled; 0: there is none; -1: an
   exception. */
static Py_ssize_t frame_of(const char *data, Py_ssize_t len, Py_ssize_t at, PyObject *crc32,
                           PyObject *outcomes, int64_t *row) {
    const unsigned char *head = (const unsigned char *)data + at;
    if (len - at < HEADER_BYTES || memcmp(head, "\x93\x01\xce", 3) || head[7] != 0xc6) return 0;
    uint64_t size = big(head + 8, 4);
    const char *payload = data + at + HEADER_BYTES;
    if (size > MAX_PAYLOAD_BYTES || size > (uint64_t)(len - at - HEADER_BYTES)) return 0;
    int sound = is_sound(crc32, payload, (Py_ssize_t)size, big(head + 3, 4));
    if (sound < 1) return sound;
    if (!row_of(data, payload, (Py_ssize_t)size, outcomes, row)) return 0;
    return HEADER_BYTES + (Py_ssize_t)size;
}

/* rows(data, start, crc32, outcomes, events, rows): the usual frames from `start` on, until `rows`,
   a writable array of int64, is full, or they have so many events. (how many, where they end). */
static PyObject *rows(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data, out;
    Py_ssize_t at, most_events;
    PyObject *crc32, *outcomes, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nOO!nw*", &data, &at, &crc32, &PyTuple_Type, &outcomes,
                          &most_events, &out))
        return NULL;
    Py_ssize_t room = out.len / (8 * ROW_CELLS), found = 0, events = 0, taken = 0;
    int64_t *row = out.buf;
    for (; at >= 0 && found < room && events < most_events && at < data.len; found++, at += taken) {
        taken = frame_of(data.buf, data.len, at, crc32, outcomes, row);
        if (taken <= 0) break;
        events += (Py_ssize_t)row[EVENTS_CELL];
        row += ROW_CELLS;
    }
    if (taken >= 0) result = Py_BuildValue("nn", found, at);
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return result;
}

/* The span of a row's array k where it lies in the data and is n packed values, else NULL. */
static const char *array_of(const Py_buffer *data, const int64_t *row, int k) {
    int64_t from = row[ARRAY_CELLS + 2 * k], len = row[ARRAY_CELLS + 2 * k + 1];
    if (from < 0 || len < 0 || from > data->len || len > data->len - from) return NULL;
    const char *raw = (const char *)data->buf + from;
    return is_packed(raw, (Py_ssize_t)len, (Py_ssize_t)row[EVENTS_CELL]) ? raw : NULL;
}

/* Nonzero if a row is none of this data, or the columns have another length than all its events. */
static int fill(const Py_buffer *data, const Py_buffer *rows_, Py_buffer *columns) {
    Py_ssize_t room = columns[0].len / 8, first = 0;
    const int64_t *row = rows_->buf;
    for (Py_ssize_t i = 0; i < rows_->len / (8 * ROW_CELLS); i++, row += ROW_CELLS) {
        int64_t n = row[EVENTS_CELL], *column[ARRAYS];
        if (n < 0 || n > room - first) return -1;
        for (int k = 0; k < ARRAYS; k++) {
            const char *raw = array_of(data, row, k);
            if (!raw) return -1;
            column[k] = (int64_t *)columns[k].buf + first;
            unpacked(raw, (Py_ssize_t)n, column[k]);
        }
        summed(row[SENT_CELL], (Py_ssize_t)n, column[0], column[1]);
        first += (Py_ssize_t)n;
    }
    return first != room;
}

/* events(data, rows, at_ns, not_before_ns, tokens): writes what the rows' arrays hold, one request
   after another, to three arrays of int64 that have room for just that; else ValueError. */
static PyObject *events(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data, from, columns[ARRAYS];
    if (!PyArg_ParseTuple(args, "y*y*w*w*w*", &data, &from, columns, columns + 1, columns + 2))
        return NULL;
    int bad = columns[1].len != columns[0].len || columns[2].len != columns[0].len ||
              fill(&data, &from, columns);
    PyBuffer_Release(&data);
    PyBuffer_Release(&from);
    for (int k = 0; k < ARRAYS; k++) PyBuffer_Release(columns + k);
    if (bad) return PyErr_Format(PyExc_ValueError, "not the rows of this data");
    Py_RETURN_NONE;
}

/* Of each event but the first of a request; the number of gaps, or -1: an array is too short. */
static Py_ssize_t gaps_of(const Py_buffer *offsets, const Py_buffer *columns, Py_buffer *found) {
    const int64_t *offset = offsets->buf, *at = columns[0].buf, *low = columns[1].buf;
    int64_t *end = found[0].buf, *gap = found[1].buf, *least = found[2].buf, *most = found[3].buf;
    Py_ssize_t room = found[0].len / 8, events = columns[0].len / 8, n = 0;
    for (Py_ssize_t request = 0; request + 1 < offsets->len / 8; request++) {
        int64_t first = offset[request], last = offset[request + 1];
        if (first < 0 || last < first || last > events || last - first - 1 > room - n) return -1;
        for (int64_t i = first + 1; i < last; i++, n++) {
            int64_t shortest = less(low[i], at[i - 1]);
            end[n] = i;
            gap[n] = less(at[i], at[i - 1]);
            least[n] = shortest < 0 ? 0 : shortest;
            most[n] = less(at[i], low[i - 1]);
        }
    }
    return n;
}

/* gaps(offsets, at_ns, not_before_ns, end, gap_ns, min_ns, max_ns): fills the last four, of one
   length, and returns how many gaps there are; ValueError. */
static PyObject *gaps(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer offsets, columns[2], found[4];
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*w*w*", &offsets, columns, columns + 1, found, found + 1,
                          found + 2, found + 3))
        return NULL;
    Py_ssize_t n = -1;
    int alike = columns[1].len == columns[0].len;
    for (int k = 1; k < 4; k++) alike = alike && found[k].len == found[0].len;
    if (alike) n = gaps_of(&offsets, columns, found);
    PyBuffer_Release(&offsets);
    for (int k = 0; k < 2; k++) PyBuffer_Release(columns + k);
    for (int k = 0; k < 4; k++) PyBuffer_Release(found + k);
    if (n < 0) return PyErr_Format(PyExc_ValueError, "not the offsets of these events");
    return PyLong_FromSsize_t(n);
}

/* Nonzero if a value's cell is none of them. */
static int count(const Py_buffer *values, const Py_buffer *cells, Py_buffer *counts,
                 Py_buffer *sums) {
    const int64_t *ns = values->buf, *cell = cells->buf;
    double *count = counts->buf, *sum = sums->buf; /* whole numbers are exact up to 2^53 */
    int64_t room = counts->len / 8;
    for (Py_ssize_t i = 0; i < values->len / 8; i++) {
        if (cell[i] < 0 || cell[i] >= room) return -1;
        count[cell[i]]++;
        sum[cell[i]] += (double)ns[i];
    }
    return 0;
}

/* count(ns, cells, counts, sums): adds each value to its cell; ValueError. */
static PyObject *count_cells(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer values, cells, counts, sums;
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &values, &cells, &counts, &sums)) return NULL;
    int bad = cells.len != values.len || sums.len != counts.len ||
              count(&values, &cells, &counts, &sums);
    PyBuffer_Release(&values);
    PyBuffer_Release(&cells);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&sums);
    if (bad) return PyErr_Format(PyExc_ValueError, "a value has none of these cells");
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_VARARGS, "A record's arrays in the fewest bytes."},
    {"unpack", unpack, METH_VARARGS, "And back."},
    {"rows", rows, METH_VARARGS, "Usual frames as rows of integers."},
    {"events", events, METH_VARARGS, "The events of such rows as columns."},
    {"gaps", gaps, METH_VARARGS, "From each event to the next one."},
    {"count", count_cells, METH_VARARGS, "Values by cell."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    if (PyModule_AddIntConstant(module, "ROW_CELLS", ROW_CELLS)) return -1;
    return PyModule_AddIntConstant(module, "LAYOUT", LAYOUT_VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_arrays", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__arrays(void) { return PyModuleDef_Init(&module); }
