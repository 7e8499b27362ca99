/* Requests in, answers out. It understands just what the clients of this benchmark send. */
#define _GNU_SOURCE
#include "paced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL[] = "bench", JSON[] = "application/json";

void answer(Connection *to, const char *status, const char *kind, const char *body, size_t size) {
    char head[256];
    int head_size = snprintf(head, sizeof head,
        "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, kind, size);
    char *whole = malloc(head_size + size);
    memcpy(whole, head, head_size);
    memcpy(whole + head_size, body, size);
    put(to, whole, head_size + size);
    free(whole);
}

static void say(Connection *to, const char *status, const char *text) {
    answer(to, status, JSON, text, strlen(text));
}

/* Of `X-Sender: RUN-WORKER-NUMBER` the last two as one number; -1 without such a header. */
static long sender_of(const char *head) {
    const char *line = strcasestr(head, "\r\nx-sender:");
    if (!line) return -1;
    line += 2;
    const char *end = line + strcspn(line, "\r");
    const char *number = memrchr(line, '-', end - line);
    const char *worker = number ? memrchr(line, '-', number - line) : NULL;
    /* the dash of the header's own name is no such id */
    if (!worker || worker < strchr(line, ':')) return -1;
    return atol(worker + 1) << 32 | atol(number + 1);
}

static void complete(Connection *from, const char *body, int chat, long sender, long arrived_ns) {
    Request *request = read_request(body, chat, MODEL);
    if (!request)
        return say(from, "400 Bad Request", "{\"error\":{\"message\":\"only streams, of tokens\"}}");
    request->to = from;
    request->arrived_ns = arrived_ns;
    request->sender = sender;
    *waits_for(from) = request;
    begin(request);
}

static void respond(Connection *from, const char *path, const char *body, long sender,
                    long arrived_ns) {
    char text[256];
    if (!strcmp(path, "/v1/chat/completions")) complete(from, body, 1, sender, arrived_ns);
    else if (!strcmp(path, "/v1/completions")) complete(from, body, 0, sender, arrived_ns);
    else if (!strcmp(path, "/oracle")) tell_oracle(from);
    else if (!strcmp(path, "/metrics")) tell_metrics(from, MODEL);
    else if (!strcmp(path, "/health")) say(from, "200 OK", "{}");
    else if (!strcmp(path, "/version")) say(from, "200 OK", "{\"version\":\"paced\"}");
    else if (!strcmp(path, "/oracle/reset")) {
        reset_oracle();
        say(from, "200 OK", "{}");
    } else if (!strcmp(path, "/tokenize")) {
        snprintf(text, sizeof text, "{\"count\":%ld,\"max_model_len\":131072}", count_words(body));
        say(from, "200 OK", text);
    } else if (!strcmp(path, "/v1/models")) {
        snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\","
                 "\"object\":\"model\",\"owned_by\":\"bench\",\"max_model_len\":131072}]}", MODEL);
        say(from, "200 OK", text);
    } else say(from, "404 Not Found", "{\"detail\":\"Not Found\"}");
}

size_t parse(Connection *from, char *in, size_t size, long arrived_ns) {
    for (;;) {
        in[size] = 0;
        char *end = strstr(in, "\r\n\r\n"), path[64] = "";
        if (!end) return size;
        *end = 0;
        char *length = strcasestr(in, "\r\ncontent-length:");
        size_t head = end + 4 - in, whole = head + (length ? strtoul(length + 17, NULL, 10) : 0);
        sscanf(in, "%*s %63s", path);
        long sender = sender_of(in);
        *end = '\r';
        if (size < whole) return size;
        char next = in[whole];
        in[whole] = 0; /* so that the body is a string */
        respond(from, path, in + head, sender, arrived_ns);
        in[whole] = next;
        size -= whole;
        memmove(in, in + whole, size);
    }
}
