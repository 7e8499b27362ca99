/* vLLM's framing, byte for byte that of 0.32 but for ids and words: the role event in a chat, events
   with or without usage so far, the usage, [DONE]. */
#include "paced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HEAD[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                           "transfer-encoding: chunked\r\n\r\n";
static const char END[] = "0\r\n\r\n";
/* Words of different lengths: a client must not live on all events being of one size. */
static const char *WORDS[] = {" the", " of", " a", " server", " latency", " is", " token", ",",
                              " stream", " in", " measurement", " by", " queue", " at", " it", "."};
enum { N_WORDS = sizeof WORDS / sizeof *WORDS };

/* What follows `"key":` in the body, past blanks; NULL when the key is missing. */
static const char *value_of(const char *body, const char *key) {
    const char *at = strstr(body, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ' || *at == ':') at++;
    return at;
}

static int is_true(const char *body, const char *key) {
    const char *at = value_of(body, key);
    return at && !strncmp(at, "true", 4);
}

long count_words(const char *body) {
    long words = 1;
    for (; *body; body++) words += *body == ' ';
    return words;
}

Request *read_request(const char *body, int chat, const char *model) {
    static long number;
    const char *most = value_of(body, "\"max_tokens\"");
    if (!most) most = value_of(body, "\"max_completion_tokens\"");
    long tokens = most ? atol(most) : 16;
    if (!is_true(body, "\"stream\"") || tokens < 1) return NULL;
    Request *request = calloc(1, sizeof *request);
    long events = (tokens + pace.per_event - 1) / pace.per_event;
    request->number = ++number;
    request->tokens = tokens;
    request->chat = chat;
    request->usage = is_true(body, "\"include_usage\"");
    request->continuous = is_true(body, "\"continuous_usage_stats\"");
    request->prompt_tokens = count_words(body);
    request->before_ns = malloc(sizeof(long) * events);
    request->after_ns = malloc(sizeof(long) * events);
    snprintf(request->prefix, sizeof request->prefix,
             "{\"id\":\"%s-%ld\",\"object\":\"%s\",\"created\":%ld,\"model\":\"%s\",\"choices\":[",
             chat ? "chatcmpl" : "cmpl", number, chat ? "chat.completion.chunk" : "text_completion",
             (long)time(NULL), model);
    return request;
}

static char *append(char *out, const char *text) {
    size_t size = strlen(text);
    memcpy(out, text, size);
    return out + size;
}

/* One SSE event as one chunk of the body. */
static char *event(char *out, const char *json, size_t size) {
    out += sprintf(out, "%zx\r\ndata: ", size + 8);
    memcpy(out, json, size);
    return append(out + size, "\n\n\r\n");
}

/* One event of the completion; `choice` is what stands in `choices`, `total` < 0: no usage. */
static char *chunk(char *out, const Request *request, const char *choice, long total,
                   const char *rest) {
    static char json[EVENT_MOST];
    int details = request->chat && *choice; /* only these have them */
    char *at = append(append(append(json, request->prefix), choice), "]");
    if (total >= 0)
        at += sprintf(at, ",\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,"
                          "\"completion_tokens\":%ld%s}",
                      request->prompt_tokens, request->prompt_tokens + total, total,
                      details ? ",\"completion_tokens_details\":null" : "");
    at = append(append(at, rest), "}");
    return event(out, json, at - json);
}

/* The tokens' text, and why it ends. */
static void write_choice(const Request *request, long new, char *out) {
    int last = request->sent + new == request->tokens;
    out = append(out, "{\"index\":0,");
    out = append(out, request->chat ? "\"delta\":{\"content\":\"" : "\"text\":\"");
    for (long i = 0; i < new; i++)
        out = append(out, WORDS[(request->number + request->sent + i) % N_WORDS]);
    out = append(out, request->chat ? "\"}," : "\",");
    out = append(out, "\"logprobs\":null,\"finish_reason\":");
    out = append(out, last ? "\"length\"," : "null,");
    if (last || !request->chat) out = append(out, "\"stop_reason\":null,");
    if (!request->chat) out = append(out, "\"prompt_token_ids\":null,");
    *append(out, "\"token_ids\":null}") = 0;
}

size_t render(const Request *request, long new, char *out) {
    static char choice[EVENT_MOST / 2];
    long total = request->sent + new, said = request->continuous ? total : -1;
    char *at = out;
    if (!request->sent) {
        at = append(at, HEAD);
        if (request->chat)
            at = chunk(at, request,
                       "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                       "\"logprobs\":null,\"finish_reason\":null}",
                       request->continuous ? 0 : -1, ",\"prompt_token_ids\":null,\"prompt_text\":null");
    }
    write_choice(request, new, choice);
    at = chunk(at, request, choice, said, "");
    if (total == request->tokens) {
        if (request->usage) at = chunk(at, request, "", total, ",\"system_fingerprint\":\"paced\"");
        at = append(event(at, "[DONE]", 6), END);
    }
    return at - out;
}
