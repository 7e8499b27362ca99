/* One connection as the C reader sees it, and what `_lane.c` does with a read of it.

   The Python modules that say the same, and why: `reader.stamping` (when it arrived),
   `wire.token_template` (is it a token), `wire.sse` (what an event looks like), `reader.fast_path`
   (who writes which cell).
   `_drain.c` exports all constants below as LAYOUT; `reader.backends` compares them with Python's
   and reads in Python where they differ. Change LAYOUT_VERSION with the meaning of anything that
   LAYOUT does not show. */
#ifndef HARNESS_LANE_H
#define HARNESS_LANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LAYOUT_VERSION 5

/* ---- wire.sse */

#define DATA "data: "
#define EVENT_END "\n\n"
#define CHUNK_END "\r\n"
#define DONE "[DONE]"
#define ERROR_KEY "\"error\""
#define ABORT "\"abort\""
#define CHOICES_KEY "\"choices\""
#define DELTA_KEY "\"delta\""
#define COUNT_KEY "\"completion_tokens\":"
#define LENGTH_OF(literal) (sizeof(literal) - 1)

#define SHORTEST_EVENT (LENGTH_OF(DATA) + LENGTH_OF(EVENT_END))
#define SHORTEST_CHUNK (1 + 2 * LENGTH_OF(CHUNK_END) + SHORTEST_EVENT) /* one digit of size */

/* ---- the lane: LANE_CELLS cells of 64 bits that Python allocates and shares */

#define LANE_CELLS 128 /* 1 KiB */
#define NAMED_CELLS 12
#define SHAPE_BYTES (8 * (LANE_CELLS - NAMED_CELLS))

/* Who takes the next read. IDLE and PYTHON are the same to C: hand it over. LEARNING: hand over
   events unlike the template, too, so that Python may learn from them. */
enum owner { IDLE, PYTHON, LEARNING, EVENTS };

/* In a template, the places of numbers. JSON has no such bytes. */
enum { ANY_NUMBER = 1, RUNNING_COUNT = 2 };
#define MAX_DIGITS 15 /* below what wire.openai takes for a count */

struct lane {
    int64_t owner, stream, drained_ns, last_ns, round, body_ns, n_bytes, before_size, rest_size;
    int64_t waiting;         /* reads that Python has not seen yet: the next ones follow them */
    int64_t sealed;          /* TLS: what is read is for Python, which has the keys */
    int64_t counted;         /* the latest running count of what Python did not see; -1: none */
    char shape[SHAPE_BYTES]; /* the template of a token's event: before its text, then the rest */
};

_Static_assert(sizeof(struct lane) == 8 * LANE_CELLS, "a lane is LANE_CELLS cells");
_Static_assert(offsetof(struct lane, shape) == 8 * NAMED_CELLS, "the template follows the cells");

/* ---- rounds, reads, rows */

struct poll_round {
    int64_t number, polled_ns, before_ns, offset_ns, anchor_ns;
    int trust_stamps;
    size_t read_bytes;
};

struct socket_read {
    int fd, code, handed, stamped; /* code: errno; handed: to Python, as it is */
    char *data;                    /* all that was read; after lane_rows, the events' bytes */
    ssize_t size;
    int64_t at_ns, bound_ns;
    int exact;
};

/* For the decoder: `reader.raw_batch`. Kind: BYTES or TOKEN, plus EXACT. */
enum { BYTES = 0, EXACT = 1, TOKEN = 4 };
struct row { int64_t stream, at_ns, bound_ns, kind, value; };

_Static_assert(sizeof(struct row) == 5 * sizeof(int64_t), "a row is five integers");

#define NO_STAMP (-1)

int64_t clock_ns(int64_t anchor_ns);
void lane_arrival(struct lane *lane, const struct poll_round *round, int64_t stamp_ns, int drained,
                  int64_t read_ns, struct socket_read *out);
size_t lane_rows(struct lane *lane, struct socket_read *read, struct row *rows);
int lane_receive(struct lane *lane, const struct poll_round *round, struct socket_read *out);

#endif
