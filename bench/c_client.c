/* The floor: what reading streams costs in C, with one epoll and kernel stamps.

     cc -O2 -o c_client c_client.c && ./c_client PORT STREAMS REQUESTS BODY-FILE TOKENS SPREAD-MS [PROCESSES]

   Sends the request in BODY-FILE (whole HTTP bytes) REQUESTS times over STREAMS kept connections to
   127.0.0.1, opened at once or spread over SPREAD-MS, reads until each response's last chunk, and
   keeps each read's stamp. Prints CPU microseconds per token, user and system, of all processes that
   share the streams. It parses nothing. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long left;
static char request[1 << 20];
static size_t request_size;
static struct sockaddr_in at = {.sin_family = AF_INET};

static void ask(int fd) {
    left--;
    if (send(fd, request, request_size, 0) != (ssize_t)request_size) exit(1);
}

static void start(int poll) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) exit(1);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    ask(fd);
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
    int poll = epoll_create1(0);
    double begun_ms = now_ms(), spread_ms = atof(argv[6]);
    static char data[65536];
    static struct epoll_event ready[4096];
    while (ended < streams) {
        while (started < streams && now_ms() >= begun_ms + started * spread_ms / streams) {
            start(poll);
            started++;
        }
        int n = epoll_wait(poll, ready, 4096, started < streams ? 1 : -1);
        for (int i = 0; i < n; i++) {
            char control[64];
            struct iovec part = {data, sizeof data};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                     .msg_controllen = sizeof control};
            int fd = ready[i].data.fd;
            ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT);
            if (size <= 0) return 1;
            struct cmsghdr *first = CMSG_FIRSTHDR(&message);
            if (first && reads < requests * (tokens + 8)) {
                struct timespec *when = (struct timespec *)CMSG_DATA(first);
                stamps[reads] = when->tv_sec * 1000000000L + when->tv_nsec;
            }
            reads++;
            if (size >= 5 && !memcmp(data + size - 5, "0\r\n\r\n", 5)) {
                if (left > 0) ask(fd);
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
