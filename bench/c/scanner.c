/* A scanning service that answers "deliver" after a fixed time: scanner PORT [MILLISECONDS].
 * Its cost is next to nothing, so that the peer's own is seen. A question in rspamd's words is answered in them; below
 * the path /close the connection ends with the answer, as rspamd does it. */
#include "net.h"

static const char BODY[] = "{\"ggrid\":\"00000000-0000-4000-8000-000000000000\",\"verdict\":\"clean\",\"decision\":\"deliver\",\"tags\":[],"
                           "\"created\":\"2026-01-01T00:00:00Z\",\"completed\":\"2026-01-01T00:00:00Z\"}";
static const char RSPAMD[] = "{\"is_skipped\":false,\"score\":0.0,\"required_score\":15.0,\"action\":\"no action\",\"symbols\":"
    "{\"ARC_NA\":{\"name\":\"ARC_NA\",\"score\":0.0,\"metric_score\":0.0,\"description\":\"ARC signature absent\"},"
    "\"R_SPF_ALLOW\":{\"name\":\"R_SPF_ALLOW\",\"score\":-0.2,\"metric_score\":-0.2,\"options\":[\"+ip4:192.0.2.0/24\"]},"
    "\"MIME_GOOD\":{\"name\":\"MIME_GOOD\",\"score\":-0.1,\"metric_score\":-0.1,\"options\":[\"text/plain\"]}},\"messages\":{}}";
static const char STATUS[] = "{\"messageQueueStatus\":\"GREEN\"}";
static const char PING[] = "pong";

typedef struct request { size_t left; int in_body, is_last; const char *answer; } request;
typedef struct due { double at; conn *c; const char *body; } due; /* in order: all take the same time */

static due *queue;
static size_t first, last, room;

static int answer(conn *c, const char *body) {
    char text[1024];
    int is_last = ((request *)c->owner)->is_last;
    int n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n%s",
                     is_last ? "Connection: close\r\n" : "", strlen(body), body);
    return say(c, text, n) && !is_last;
}

static int answer_in_time(conn *c, const char *body, double delay) {
    if (delay <= 0 || body == STATUS || body == PING) return answer(c, body);
    if (last == room) {
        memmove(queue, queue + first, (last - first) * sizeof *queue);
        last -= first;
        first = 0;
        if (last * 2 >= room) queue = realloc(queue, (room = room * 2 + 1024) * sizeof *queue);
    }
    queue[last++] = (due){now() + delay, c, body};
    return 1;
}

static void forget(conn *c) {
    for (size_t i = first; i < last; i++)
        if (queue[i].c == c) queue[i].c = NULL;
    free(c->owner);
    end_conn(c);
    free(c);
}

/* 0 when the connection is to end. The body is counted, not kept. */
static int take(conn *c, double delay) {
    request *r = c->owner;
    for (;;) {
        if (r->in_body) {
            size_t some = length_of(&c->in) < r->left ? length_of(&c->in) : r->left;
            consume(&c->in, some);
            r->left -= some;
            if (r->left) return 1;
            r->in_body = 0;
            if (!answer_in_time(c, r->answer, delay)) return 0;
        }
        char *head = begin_of(&c->in), *end = length_of(&c->in) ? memmem(head, length_of(&c->in), "\r\n\r\n", 4) : NULL;
        if (!end) return length_of(&c->in) < 65536;
        *end = 0;
        char *length = strcasestr(head, "\r\ncontent-length:");
        r->left = length ? strtoul(length + 17, NULL, 10) : 0;
        r->answer = strstr(head, "/checkv2") ? RSPAMD : strncmp(head, "POST", 4) == 0 ? BODY : strstr(head, "status") ? STATUS : PING;
        r->is_last = r->answer == RSPAMD && strstr(head, "/close/");
        r->in_body = 1;
        consume(&c->in, end + 4 - head);
    }
}

int main(int argc, char **argv) {
    double delay = argc > 2 ? atof(argv[2]) / 1000 : 0;
    struct epoll_event events[256];
    begin_net();
    int listener = listen_on(atoi(argv[1]));
    for (;;) {
        double wait = first < last ? queue[first].at - now() : 3600;
        int count = epoll_wait(epoll_fd, events, 256, wait <= 0 ? 0 : (int)(wait * 1000) + 1);
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            if (!c) {
                for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) make_conn(fd)->owner = calloc(1, sizeof(request));
                continue;
            }
            if (((events[i].events & EPOLLOUT) && !flush(c)) || !hear(c) || !take(c, delay)) forget(c);
        }
        for (double t = now(); first < last && queue[first].at <= t; first++)
            if (queue[first].c && !answer(queue[first].c, queue[first].body)) forget(queue[first].c);
    }
}
