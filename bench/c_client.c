/* The floor: what reading streams costs in C, with one epoll and kernel stamps.

     cc -O2 -o c_client c_client.c && ./c_client PORT STREAMS REQUESTS BODY-FILE TOKENS SPREAD-MS [PROCESSES]
     cc -O2 -DWITH_TLS -o c_client_tls c_client.c -lssl -lcrypto     (the same, in TLS)

   Sends the request in BODY-FILE (whole HTTP bytes) REQUESTS times over STREAMS kept connections to
   127.0.0.1, opened at once or spread over SPREAD-MS, reads until each response's last chunk, and
   keeps each read's stamp. Prints CPU microseconds per token, user and system, of all processes that
   share the streams. It parses nothing. In TLS it looks ahead for the stamp, as OpenSSL gives none, and
verifies no certificate. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "paced_tls.h"

enum { ROOM = 65536 };

typedef struct Stream {
    int fd;
    SSL *tls; /* NULL: plain */
} Stream;

static long left;
static char request[1 << 20];
static size_t request_size;
static struct sockaddr_in at = {.sin_family = AF_INET};

static void ask(Stream *to) {
    left--;
    if (tls_send(to->fd, to->tls, request, request_size) != (ssize_t)request_size) exit(1);
}

static void start(int poll, Stream *new) {
    int one = 1;
    new->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(new->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    setsockopt(new->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(new->fd, (struct sockaddr *)&at, sizeof at)) exit(1);
    new->tls = tls_connect(new->fd);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = new};
    epoll_ctl(poll, EPOLL_CTL_ADD, new->fd, &event);
    ask(new);
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* One of so many processes, its share of the streams and of the requests. */
static long share(const char *of, int processes, int which) {
    long all = atol(of);
    return all / processes + (which < all % processes);
}

static int client(char **argv, int processes, int which) {
    int streams = share(argv[2], processes, which), started = 0, ended = 0;
    long requests = left = share(argv[3], processes, which), tokens = atol(argv[5]), reads = 0;
    FILE *file = fopen(argv[4], "rb");
    if (!file) return 1;
    request_size = fread(request, 1, sizeof request, file);
    at.sin_port = htons(atoi(argv[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    long *stamps = malloc(sizeof(long) * requests * (tokens + 8));
    Stream *all = calloc(streams, sizeof *all);
    int poll = epoll_create1(0);
    double begun_ms = now_ms(), spread_ms = atof(argv[6]);
    static char data[ROOM];
    static struct epoll_event ready[4096];
    while (ended < streams) {
        /* one at a time: in TLS each takes a while, and the others must be read meanwhile */
        int wait_ms = -1;
        if (started < streams) {
            int due = now_ms() >= begun_ms + started * spread_ms / streams;
            if (due) start(poll, &all[started++]);
            wait_ms = !due;
        }
        int n = epoll_wait(poll, ready, 4096, wait_ms);
        for (int i = 0; i < n; i++) {
            Stream *from = ready[i].data.ptr;
            long stamp_ns = 0;
            ssize_t size = tls_recv(from->fd, from->tls, data, ROOM, &stamp_ns);
            if (size < 0 && errno == EAGAIN) continue; /* a part of a record, or a ticket */
            if (size <= 0) return 1;
            if (reads < requests * (tokens + 8)) stamps[reads] = stamp_ns;
            reads++;
            if (size >= 5 && !memcmp(data + size - 5, "0\r\n\r\n", 5)) {
                if (left > 0) ask(from);
                else ended++;
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) return 2;
    int processes = argc == 8 ? atoi(argv[7]) : 1;
    long all = atol(argv[3]) * atol(argv[5]);
    for (int i = 0; i < processes; i++)
        if (!fork()) _exit(client(argv, processes, i));
    for (int status; wait(&status) > 0;)
        if (status) return 1;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double user = used.ru_utime.tv_sec * 1e6 + used.ru_utime.tv_usec;
    double system = used.ru_stime.tv_sec * 1e6 + used.ru_stime.tv_usec;
    printf("%.2f %.2f\n", user / all, system / all);
    return 0;
}
