/* A server that streams completions by the clock and remembers what it truly sent, and when.

     cc -O2 -o paced_server paced_*.c
     ./paced_server [--first-ms 100] [--gap-ms 20] [--tokens-per-event 1] [--hold N]
                    [--processes N] [--address 127.0.0.1]
                    [--certificate PEM]     (needs -DWITH_TLS -lssl -lcrypto)

   Prints its port at that address. Of several processes, which share that port (the kernel deals the
   connections out), each has one of its own behind it in that line: its /oracle is there. A stream's first event is due `--first-ms` after its request came,
   the others one each gap. `--hold N`: the first N requests wait for each other, then begin at once.
   GET /oracle gives all requests since POST /oracle/reset as int64: arrived_ns (the kernel's stamp),
   tokens, tokens of an event, stalled sends, its sender's id (-1: none), n events, before_ns[n],
   after_ns[n]. The id is of a header `X-Sender: RUN-WORKER-NUMBER`: WORKER << 32 | NUMBER. */
#define _GNU_SOURCE
#include "paced.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "paced_tls.h"

enum { READ = 65536, READY = 1024 };

struct Connection {
    int fd;
    SSL *tls;
    Request *request;
    char *in, *out; /* what was read of a request; what the socket did not take */
    size_t in_size, in_room, out_size, out_sent;
};

Pace pace = {100000000, 20000000, 1, 0};
static struct in_addr own_address; /* where it listens */
static int poll_fd, timer_fd, door_fd, own_door_fd = -1, n_processes = 1;

Request **waits_for(Connection *connection) { return &connection->request; }

static void watch(Connection *to) {
    struct epoll_event event = {EPOLLIN | (to->out_size ? EPOLLOUT : 0), {.ptr = to}};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, to->fd, &event);
}

int put(Connection *to, const char *data, size_t size) {
    ssize_t sent = to->out_size ? 0 : tls_send(to->fd, to->tls, data, size);
    if (sent == (ssize_t)size) return 1;
    if (sent < 0) sent = 0;
    to->out = realloc(to->out, to->out_size + size - sent);
    memcpy(to->out + to->out_size, data + sent, size - sent);
    to->out_size += size - sent;
    watch(to);
    return 0;
}

static void flush(Connection *to) {
    while (to->out_sent < to->out_size) {
        const char *rest = to->out + to->out_sent;
        ssize_t sent = tls_send(to->fd, to->tls, rest, to->out_size - to->out_sent);
        if (sent <= 0) return;
        to->out_sent += sent;
    }
    free(to->out);
    to->out = NULL;
    to->out_size = to->out_sent = 0;
    watch(to);
}

/* Whether the connection lives on. */
static int read_all(Connection *from) {
    for (;;) {
        if (from->in_room - from->in_size < READ + 1)
            from->in = realloc(from->in, from->in_room += 2 * READ);
        long stamp_ns = 0;
        ssize_t size = tls_recv(from->fd, from->tls, from->in + from->in_size, READ, &stamp_ns);
        if (size <= 0) return size < 0 && errno == EAGAIN;
        size += from->in_size;
        from->in_size = parse(from, from->in, size, stamp_ns ? stamp_ns : now_ns());
    }
}

static void hang_up(Connection *from) {
    if (from->request) give_up(from->request);
    tls_free(from->tls);
    close(from->fd);
    free(from->in);
    free(from->out);
    free(from);
}

static void welcome_at(int door) {
    int one = 1, fd;
    while ((fd = accept4(door, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        Connection *new = calloc(1, sizeof *new);
        new->fd = fd;
        new->tls = tls_new(fd);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {EPOLLIN, {.ptr = new}};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void welcome(void) {
    welcome_at(door_fd);
    if (own_door_fd >= 0) welcome_at(own_door_fd);
}

/* A port, 0: any; which it is. */
static int listen_at(int *door, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = own_address, .sin_port = htons(port)};
    socklen_t size = sizeof at;
    int one = 1;
    *door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    /* connections inherit both */
    setsockopt(*door, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    /* BBR paces segments: they would leave later than `send` returns. Refused: as it was. */
    setsockopt(*door, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
    if (n_processes > 1) setsockopt(*door, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(*door, (struct sockaddr *)&at, size) || listen(*door, 4096)) exit(1);
    getsockname(*door, (struct sockaddr *)&at, &size);
    return ntohs(at.sin_port);
}

static void listen_here(void) {
    int port = listen_at(&door_fd, 0);
    printf("%d", port);
    for (int i = 0; n_processes > 1 && i < n_processes; i++) {
        printf(" %d", listen_at(&own_door_fd, 0));
        if (i + 1 == n_processes) break; /* this process is the last of them */
        fflush(stdout);
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            freopen("/dev/null", "w", stdout); /* the line is the parent's */
            close(door_fd); /* the kernel deals out by listening socket, so each has its own */
            listen_at(&door_fd, port);
            return;
        }
        close(own_door_fd);
    }
    printf("\n");
    fflush(stdout);
}

static int options(int argc, char **argv) {
    struct option known[] = {{"first-ms", 1, 0, 'f'}, {"gap-ms", 1, 0, 'g'}, {"hold", 1, 0, 'h'},
                             {"tokens-per-event", 1, 0, 'k'}, {"processes", 1, 0, 'p'}, {"certificate", 1, 0, 'c'},
                             {"address", 1, 0, 'a'}, {0}};
    own_address.s_addr = htonl(INADDR_LOOPBACK);
    for (int flag; (flag = getopt_long(argc, argv, "", known, NULL)) >= 0;) {
        if (flag == 'f') pace.first_ns = atof(optarg) * 1e6;
        else if (flag == 'g') pace.gap_ns = atof(optarg) * 1e6;
        else if (flag == 'h') pace.hold = atol(optarg);
        else if (flag == 'p') n_processes = atoi(optarg);
        else if (flag == 'k') pace.per_event = atol(optarg);
        else if (flag == 'a' && inet_aton(optarg, &own_address)) continue;
        else if (flag != 'c' || !tls_begin(optarg)) return 0;
    }
    return pace.gap_ns > 0 && pace.per_event > 0 && pace.per_event <= 512;
}

int main(int argc, char **argv) {
    if (!options(argc, argv)) return 2;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGPIPE, SIG_IGN);
    share_counts();
    listen_here();
    poll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    /* the timer is edge-triggered: setting it anew is enough, nobody reads it */
    struct epoll_event timer = {EPOLLIN | EPOLLET, {.ptr = &timer_fd}}, door = {EPOLLIN, {0}};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, &timer);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, door_fd, &door);
    if (own_door_fd >= 0) epoll_ctl(poll_fd, EPOLL_CTL_ADD, own_door_fd, &door);
    static struct epoll_event ready[READY];
    for (;;) {
        int n = epoll_wait(poll_fd, ready, READY, -1);
        for (int i = 0; i < n; i++) {
            Connection *from = ready[i].data.ptr;
            if (!from) welcome();
            else if (ready[i].data.ptr != &timer_fd) {
                if (ready[i].events & EPOLLOUT) flush(from);
                if (ready[i].events & ~EPOLLOUT && !read_all(from)) hang_up(from);
            }
        }
        long due_ns = play();
        struct itimerspec when = {.it_value = {due_ns / 1000000000L, due_ns % 1000000000L}};
        timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    }
}
