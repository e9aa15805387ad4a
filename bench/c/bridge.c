/* The limit: SMTP in, multipart POST, 250 or 451 out, in one thread; nothing is checked, nothing is logged.
 * No mail server, only a yardstick: bridge PORT SCANNER_PORT */
#include "net.h"

static const char BOUNDARY_HEAD[] = "--yardstick\r\nContent-Disposition: form-data; name=\"parameters\"\r\nContent-Type: application/json\r\n\r\n"
    "{\"borderMtaData\":{\"envelopeFrom\":\"a@example.org\",\"envelopeRecipients\":[\"b@example.net\"],\"remoteAddress\":\"127.0.0.1\"}}"
    "\r\n--yardstick\r\nContent-Disposition: form-data; name=\"email\"; filename=\"mail.eml\"\r\nContent-Type: message/rfc822\r\n\r\n";
static const char TAIL[] = "\r\n--yardstick--\r\n";

typedef struct side { int is_http, in_data, busy; size_t searched; conn *other; } side;

static conn *idle; /* connections to the scanner */
static int scanner_port;
static int is_one_lost; /* then the other events of this round may be for it: epoll tells again */

static conn *make_side(conn *c, int is_http) {
    side *s = calloc(1, sizeof *s);
    s->is_http = is_http;
    c->owner = s;
    return c;
}

static void lose(conn *c) {
    side *s = c->owner;
    is_one_lost = 1;
    if (s->other) {
        side *o = s->other->owner;
        o->other = NULL;
        if (s->is_http) {
            o->busy = 0;
            say_text(s->other, "451 4.3.0 Try again later\r\n");
        }
    }
    for (conn **p = &idle; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    free(s);
    end_conn(c);
    free(c);
}

/* Dots that were doubled for the wire go, in place; the new length. */
static size_t unstuff(char *mail, size_t length) {
    char *dot = length && mail[0] == '.' ? mail : memmem(mail, length, "\r\n..", 4);
    if (!dot) return length;
    char *to = dot == mail ? mail : dot + 2, *from = to + 1, *end = mail + length;
    while (from < end) {
        char *next = memmem(from, end - from, "\r\n..", 4);
        size_t run = (next ? next + 2 : end) - from;
        memmove(to, from, run);
        to += run;
        from += run + (next ? 1 : 0);
    }
    return to - mail;
}

static void submit(conn *c, char *mail, size_t length) {
    side *s = c->owner;
    length = unstuff(mail, length);
    conn *h = idle;
    if (h) idle = h->next;
    else if ((h = dial(scanner_port))) make_side(h, 1);
    if (!h) {
        say_text(c, "451 4.3.0 Try again later\r\n");
        return;
    }
    char head[512];
    int n = snprintf(head, sizeof head,
                     "POST /v1/messageQueue/submitEmail HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer 0123456789abcdef\r\n"
                     "Content-Type: multipart/form-data; boundary=yardstick\r\nContent-Length: %zu\r\n\r\n",
                     sizeof BOUNDARY_HEAD - 1 + length + sizeof TAIL - 1);
    s->busy = 1;
    s->other = h;
    ((side *)h->owner)->other = c;
    put(&h->out, head, n);
    put(&h->out, BOUNDARY_HEAD, sizeof BOUNDARY_HEAD - 1);
    put(&h->out, mail, length);
    put(&h->out, TAIL, sizeof TAIL - 1);
    if (!flush(h)) lose(h);
}

static int smtp(conn *c) {
    side *s = c->owner;
    while (!s->busy && length_of(&c->in)) {
        char *text = begin_of(&c->in);
        size_t length = length_of(&c->in);
        if (s->in_data) {
            size_t from = s->searched > 4 ? s->searched - 4 : 0;
            char *end = memmem(text + from, length - from, "\r\n.\r\n", 5);
            s->searched = length;
            if (!end) return 1;
            s->in_data = 0;
            submit(c, text, end + 2 - text);
            consume(&c->in, end + 5 - text);
            continue;
        }
        char *end = memmem(text, length, "\r\n", 2);
        if (!end) return 1;
        const char *reply = "250 2.0.0 OK\r\n";
        if (!strncasecmp(text, "EHLO", 4)) reply = "250-yardstick\r\n250-PIPELINING\r\n250 8BITMIME\r\n";
        if (!strncasecmp(text, "DATA", 4)) {
            reply = "354 Go on\r\n";
            s->in_data = 1;
            s->searched = 0;
        }
        int quits = !strncasecmp(text, "QUIT", 4);
        if (!say_text(c, quits ? "221 2.0.0 Bye\r\n" : reply) || quits) return 0;
        consume(&c->in, end + 2 - text);
    }
    return 1;
}

static int http(conn *c) {
    side *s = c->owner;
    if (!length_of(&c->in)) return 1;
    char *text = begin_of(&c->in), *end = memmem(text, length_of(&c->in), "\r\n\r\n", 4);
    if (!end) return 1;
    *end = 0;
    char *length = strcasestr(text, "\r\ncontent-length:");
    size_t whole = end + 4 - text + (length ? strtoul(length + 17, NULL, 10) : 0);
    *end = '\r';
    if (length_of(&c->in) < whole) return 1;
    int is_good = memmem(text, whole, "\"deliver\"", 9) != NULL;
    consume(&c->in, whole);
    conn *client = s->other;
    s->other = NULL;
    c->next = idle;
    idle = c;
    if (client) {
        side *o = client->owner;
        o->other = NULL;
        o->busy = 0;
        if (!say_text(client, is_good ? "250 2.0.0 OK\r\n" : "451 4.3.0 Try again later\r\n") || !smtp(client)) lose(client);
    }
    return 1;
}

int main(int argc, char **argv) {
    struct epoll_event events[64];
    if (argc < 3) return 2;
    begin_net();
    scanner_port = atoi(argv[2]);
    int listener = listen_on(atoi(argv[1]));
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 64, -1);
        is_one_lost = 0;
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            if (!c) {
                for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) say_text(make_side(make_conn(fd), 0), "220 yardstick\r\n");
                continue;
            }
            int is_http = ((side *)c->owner)->is_http;
            if (((events[i].events & EPOLLOUT) && !flush(c)) ||
                ((events[i].events & ~EPOLLOUT) && (!hear(c) || !(is_http ? http(c) : smtp(c)))))
                lose(c);
            if (is_one_lost) break;
        }
    }
}
