/* What the programs of this directory share: connections over epoll that can always be written to. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct buffer { char *data; size_t start, end, room; } buffer; /* what is in it: data[start..end) */

typedef struct conn {
    int fd, wants_out;
    buffer in, out;
    struct conn *next; /* in whatever list the owner has */
    void *owner;
} conn;

static int epoll_fd = -1;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void make_room(buffer *b, size_t more) {
    if (b->start && b->end + more > b->room) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->end + more > b->room) {
        b->room = (b->end + more) * 2;
        b->data = realloc(b->data, b->room);
        if (!b->data) die("realloc");
    }
}

static void put(buffer *b, const void *bytes, size_t count) {
    make_room(b, count);
    memcpy(b->data + b->end, bytes, count);
    b->end += count;
}

static char *begin_of(buffer *b) { return b->data + b->start; }
static size_t length_of(buffer *b) { return b->end - b->start; }

static void consume(buffer *b, size_t count) {
    b->start += count;
    if (b->start == b->end) b->start = b->end = 0;
}

static void watch(conn *c, int op, int out) {
    struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    c->wants_out = out;
    if (epoll_ctl(epoll_fd, op, c->fd, &event)) die("epoll_ctl");
}

static conn *make_conn(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    conn *c = calloc(1, sizeof *c);
    if (!c) die("calloc");
    c->fd = fd;
    watch(c, EPOLL_CTL_ADD, 0);
    return c;
}

static void end_conn(conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    free(c->in.data);
    free(c->out.data);
    memset(&c->in, 0, sizeof c->in);
    memset(&c->out, 0, sizeof c->out);
}

/* Write what is waiting; 0 when the connection is lost. */
static int flush(conn *c) {
    while (length_of(&c->out)) {
        ssize_t sent = send(c->fd, begin_of(&c->out), length_of(&c->out), MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == ENOTCONN)) {
            if (!c->wants_out) watch(c, EPOLL_CTL_MOD, 1);
            return 1;
        }
        if (sent < 0) return 0;
        consume(&c->out, sent);
    }
    if (c->wants_out) watch(c, EPOLL_CTL_MOD, 0);
    return 1;
}

static int say(conn *c, const void *bytes, size_t count) {
    if (!length_of(&c->out)) { /* mostly: no copy */
        ssize_t sent = send(c->fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) return 0;
        if (sent < 0) sent = 0;
        if ((size_t)sent == count) return 1;
        bytes = (const char *)bytes + sent;
        count -= sent;
    }
    put(&c->out, bytes, count);
    return flush(c);
}

static int say_text(conn *c, const char *text) { return say(c, text, strlen(text)); }

/* Read what is there; 0 when the connection is over. */
static int hear(conn *c) {
    make_room(&c->in, 65536);
    ssize_t got = recv(c->fd, c->in.data + c->in.end, c->in.room - c->in.end, 0);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    c->in.end += got;
    return 1;
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    return fd;
}

static conn *dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = loopback(port);
    if (fd < 0) die("socket");
    if (connect(fd, (void *)&address, sizeof address) && errno != EINPROGRESS) {
        close(fd);
        return NULL;
    }
    return make_conn(fd);
}

static void begin_net(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(0);
}
