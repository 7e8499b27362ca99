/* What is due when, and the record of what was sent. */
#include "paced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* At one waking up streams due within SLACK_NS are sent, TURN at most before requests are read
   again. Requests of PROBE_TOKENS are a client's first questions: nobody waits for them. */
enum { SLACK_NS = 100000, TURN = 256, PROBE_TOKENS = 2, HEAD_FIELDS = 6 };

typedef struct { Request *first, *last; } Queue;

/* Each is in order of `due_ns` by itself, because the delay is one for all streams. */
static Queue starting, going, held;
static long n_held;
/* Of all processes: `/metrics` of each says what all have done. */
static struct counts { long running, requests, done, prompt_tokens, tokens; } *counts;
#define COUNT(what, n) __atomic_fetch_add(&counts->what, n, __ATOMIC_RELAXED)

void share_counts(void) {
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) exit(1);
}
static Request **kept;
static long n_kept, kept_room;

static void push(Queue *queue, Request *request) {
    request->next = NULL;
    if (queue->first) queue->last->next = request;
    else queue->first = request;
    queue->last = request;
}

static Request *pop(Queue *queue) {
    Request *request = queue->first;
    queue->first = request->next;
    return request;
}

static Queue *earliest(void) {
    if (!starting.first) return going.first ? &going : NULL;
    if (!going.first) return &starting;
    return starting.first->due_ns < going.first->due_ns ? &starting : &going;
}

static void start(Request *request, long due_ns) {
    request->due_ns = due_ns;
    push(&starting, request);
}

void begin(Request *request) {
    COUNT(running, 1);
    COUNT(requests, 1);
    COUNT(prompt_tokens, request->prompt_tokens);
    if (n_kept == kept_room) kept = realloc(kept, sizeof *kept * (kept_room = 2 * kept_room + 64));
    kept[n_kept++] = request;
    if (n_held >= pace.hold || request->tokens <= PROBE_TOKENS) {
        start(request, request->arrived_ns + pace.first_ns);
        return;
    }
    push(&held, request);
    if (++n_held < pace.hold) return;
    long due_ns = now_ns() + pace.first_ns;
    while (held.first) start(pop(&held), due_ns);
}

void give_up(Request *request) {
    request->to = NULL; /* its queue lets it go */
    COUNT(running, -1);
}

static void emit(Request *request) {
    static char data[2 * EVENT_MOST];
    long left = request->tokens - request->sent;
    long new = left < pace.per_event ? left : pace.per_event;
    size_t size = render(request, new, data);
    request->before_ns[request->events] = now_ns();
    if (!put(request->to, data, size)) request->stalled++;
    request->after_ns[request->events++] = now_ns();
    request->sent += new;
    COUNT(tokens, new);
    if (request->sent < request->tokens) {
        request->due_ns += pace.gap_ns;
        push(&going, request);
        return;
    }
    *waits_for(request->to) = NULL;
    COUNT(running, -1);
    COUNT(done, 1);
}

long play(void) {
    long limit_ns = now_ns() + 1;
    Queue *queue;
    for (int turn = 0; turn < TURN && (queue = earliest()); turn++) {
        if (queue->first->due_ns >= limit_ns) break;
        Request *request = pop(queue);
        if (request->to) emit(request);
    }
    queue = earliest();
    return queue ? queue->first->due_ns + SLACK_NS : 0;
}

void tell_oracle(Connection *to) {
    size_t size = 0, at = 0;
    for (long i = 0; i < n_kept; i++) size += HEAD_FIELDS + 2 * kept[i]->events;
    long *all = malloc(size * sizeof *all + 1);
    for (long i = 0; i < n_kept; i++) {
        Request *r = kept[i];
        long head[HEAD_FIELDS] = {r->arrived_ns, r->tokens, pace.per_event, r->stalled, r->sender,
                                  r->events};
        memcpy(all + at, head, sizeof head);
        memcpy(all + at + HEAD_FIELDS, r->before_ns, r->events * sizeof *all);
        memcpy(all + at + HEAD_FIELDS + r->events, r->after_ns, r->events * sizeof *all);
        at += HEAD_FIELDS + 2 * r->events;
    }
    answer(to, "200 OK", "application/octet-stream", (char *)all, size * sizeof *all);
    free(all);
}

/* What is still under way stays; what was given up may still be queued and is only forgotten. */
void reset_oracle(void) {
    long kept_on = 0;
    for (long i = 0; i < n_kept; i++) {
        Request *r = kept[i];
        if (r->sent == r->tokens) {
            free(r->before_ns);
            free(r->after_ns);
            free(r);
        } else if (r->to) kept[kept_on++] = r;
    }
    n_kept = kept_on;
    n_held = 0;
}

void tell_metrics(Connection *to, const char *model) {
    struct { const char *name, *label; long value; } rows[] = {
        {"num_requests_running", "", counts->running},       {"num_requests_waiting", "", 0},
        {"kv_cache_usage_perc", "", 0},                {"num_preemptions_total", "", 0},
        {"prompt_tokens_total", "", counts->prompt_tokens},    {"generation_tokens_total", "", counts->tokens},
        {"request_success_total", ",finished_reason=\"length\"", counts->done}};
    char text[4096], *at = text;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        at += sprintf(at, "# TYPE vllm:%s %s\nvllm:%s{engine=\"0\",model_name=\"%s\"%s} %ld\n",
                      rows[i].name, strstr(rows[i].name, "_total") ? "counter" : "gauge",
                      rows[i].name, model, rows[i].label, rows[i].value);
    answer(to, "200 OK", "text/plain; version=0.0.4", text, at - text);
}
