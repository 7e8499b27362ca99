/* What the parts of the paced server share:

     paced_server.c   sockets: one process, one epoll
     paced_http.c     requests in, answers out
     paced_pace.c     what is due when, and the record of what was sent
     paced_frames.c   vLLM's framing

   All times are CLOCK_REALTIME in nanoseconds, as kernel stamps are. */
#ifndef PACED_H
#define PACED_H
#include <stddef.h>
#include <time.h>

enum { EVENT_MOST = 1 << 15 }; /* bytes of one event at most */

typedef struct Pace {
    long first_ns, gap_ns; /* from arrival to the first event, and between events */
    long per_event, hold;  /* tokens of an event; how many requests wait for each other first */
} Pace;

typedef struct Connection Connection;

typedef struct Request {
    long number, prompt_tokens;
    long sender;                   /* what its X-Sender header says, see sender_of; -1: nothing */
    long tokens, sent, events;     /* asked for; tokens and events sent so far */
    long arrived_ns, due_ns;       /* due: when its next event is to be sent */
    long *before_ns, *after_ns;    /* the clock around each send, an entry for each event */
    long stalled;                  /* sends that the socket did not take whole */
    int chat, usage, continuous;   /* continuous: usage in every event */
    Connection *to;                /* NULL: the client hung up */
    struct Request *next;          /* in its queue */
    char prefix[256];              /* of every event's JSON */
} Request;

extern Pace pace;

static inline long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* paced_server.c: sends what it can and keeps the rest; whether all of it went at once. */
int put(Connection *to, const char *data, size_t size);
/* The request that a connection waits for, to be set when one begins or ends. */
Request **waits_for(Connection *connection);

/* paced_http.c: handles the whole requests in `in`, of which `size` bytes are filled and one more
   is room for an end; the bytes that are left. */
size_t parse(Connection *from, char *in, size_t size, long arrived_ns);
void answer(Connection *to, const char *status, const char *kind, const char *body, size_t size);

/* paced_pace.c: before any process is forked. */
void share_counts(void);
/* A request arrived; its client hung up; send what is due and say when to be called
   again (0: not before the next request). */
void begin(Request *request);
void give_up(Request *request);
long play(void);
/* GET /oracle, GET /metrics, POST /oracle/reset. */
void tell_oracle(Connection *to);
void tell_metrics(Connection *to, const char *model);
void reset_oracle(void);

/* paced_frames.c: reads a completion's body; NULL when it asks for no stream or for no tokens. */
Request *read_request(const char *body, int chat, const char *model);
/* Renders the next `new` tokens, with what opens or ends the response, into 2 * EVENT_MOST bytes. */
size_t render(const Request *request, long new, char *out);
long count_words(const char *body);
#endif
