/* A next hop that takes every mail and forgets it: sink PORT */
#include "net.h"

typedef struct hop { int in_data; } hop;

static int take(conn *c) {
    hop *h = c->owner;
    while (length_of(&c->in)) {
        char *text = begin_of(&c->in);
        size_t length = length_of(&c->in);
        if (h->in_data) {
            char *end = memmem(text, length, "\r\n.\r\n", 5);
            if (!end) { /* only the last bytes can belong to the end */
                if (length > 4) consume(&c->in, length - 4);
                return 1;
            }
            h->in_data = 0;
            consume(&c->in, end + 5 - text);
            if (!say_text(c, "250 2.0.0 Ok: queued as 4XyZ67890\r\n")) return 0;
            continue;
        }
        char *end = memmem(text, length, "\r\n", 2);
        if (!end) return 1;
        const char *reply = "250 2.1.0 Ok\r\n";
        if (!strncasecmp(text, "EHLO", 4)) reply = "250-sink.example.net\r\n250-PIPELINING\r\n250-SIZE\r\n250-ENHANCEDSTATUSCODES\r\n250 8BITMIME\r\n";
        if (!strncasecmp(text, "DATA", 4)) {
            reply = "354 Go on\r\n";
            h->in_data = 1;
        }
        int quits = !strncasecmp(text, "QUIT", 4);
        consume(&c->in, end + 2 - text);
        if (!say_text(c, quits ? "221 2.0.0 Bye\r\n" : reply) || quits) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    struct epoll_event events[64];
    if (argc < 2) return 2;
    begin_net();
    int listener = listen_on(atoi(argv[1]));
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 64, -1);
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            if (!c) {
                for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                    conn *fresh = make_conn(fd);
                    fresh->owner = calloc(1, sizeof(hop));
                    say_text(fresh, "220 sink.example.net\r\n");
                }
                continue;
            }
            if (((events[i].events & EPOLLOUT) && !flush(c)) || !hear(c) || !take(c)) {
                free(c->owner);
                end_conn(c);
                free(c);
            }
        }
    }
}
