/* Open-loop SMTP load: mail arrives when it arrives, however the server is doing.
 *
 *   openload PORT RATE SECONDS kept|each
 *
 * `kept`: a mail takes a connection that is free, as a mail server with a connection cache does, and opens one when none is;
 * `each`: every mail has a connection of its own. Prints `measuring` after the warm-up, in which the rate grows to what it is
 * to be, and one line of JSON at the end. Times count from the moment at which the mail was to arrive, so that a connection
 * that is not accepted costs what it costs, and so does a generator that comes late. */
#include "net.h"

#define WARM_UP_S 1.5
#define PATIENCE_S 10.0 /* at the end, for what has not been answered */
#define SOURCES 8       /* client addresses: a port is not used twice within a minute, and there are 28,000 of them for each */
#define MOST_CONNECTIONS 8000

enum stage { GREETING, EHLO, MAIL, RCPT, DATA, DOT, RSET, QUIT, IDLE };
static const char *STAGES[] = {"greeting", "ehlo", "mail", "rcpt", "data", "dot", "rset", "quit", "idle"};

typedef struct client { enum stage stage; double arrived, dot_at; } client;
typedef struct times { double *seconds; size_t count, room; } times;

static int port, is_kept, most_connections, connections, number;
static double measured_from, measured_until;
static long with_mail, unanswered, offered, done_in_time, too_many, lost[9];
static times accepted, after_dot, behind, refused[9];
static struct { char text[10]; long count; } codes[64];
static conn *idle;
static buffer content;
static size_t id_at; /* where the content has the number of the mail */
static unsigned mails;

static void note(times *t, double seconds) {
    if (t->count == t->room) t->seconds = realloc(t->seconds, (t->room = t->room * 2 + 1024) * sizeof *t->seconds);
    t->seconds[t->count++] = seconds;
}

static void make_content(void) {
    const char *head = "From: <a@client.example>\r\nTo: <b@example.org>\r\nSubject: load\r\nMessage-ID: <00000000@client.example>\r\n\r\n";
    put(&content, head, strlen(head));
    id_at = strstr(head, "00000000") - head;
    while (content.end < 4096) put(&content, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789\r\n", 76);
    put(&content, ".\r\n", 3);
}

/* No two mails have the same Message-ID: the bridge would take them for attempts with one mail. */
static int say_content(conn *c) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08u", mails++ % 100000000u);
    memcpy(content.data + id_at, digits, 8);
    return say(c, content.data, content.end);
}

static void count_code(const char *reply) {
    char text[10] = {0};
    int length = strcspn(reply, "\r\n");
    memcpy(text, reply, length < 9 ? length : 9);
    for (int i = 0; i < 64; i++) {
        if (!codes[i].count) strcpy(codes[i].text, text);
        if (!strcmp(codes[i].text, text)) {
            codes[i].count++;
            return;
        }
    }
}

static void end(conn *c) {
    connections--;
    free(c->owner);
    end_conn(c);
    free(c);
}

static void lose(conn *c) {
    client *one = c->owner;
    if (one->stage == IDLE) {
        for (conn **p = &idle; *p; p = &(*p)->next)
            if (*p == c) {
                *p = c->next;
                break;
            }
    } else if (one->stage != QUIT && one->stage != RSET) {
        with_mail--;
        if (one->arrived >= measured_from) lost[one->stage]++, unanswered--;
    }
    end(c);
}

static int go(conn *c, enum stage stage, const char *command) {
    ((client *)c->owner)->stage = stage;
    return say_text(c, command);
}

static void open_one(double arrived) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in from = {.sin_family = AF_INET}, to = loopback(port);
    if (fd < 0) die("socket");
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one); /* the port is chosen for the pair */
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + number++ % SOURCES);
    if (bind(fd, (void *)&from, sizeof from)) die("bind");
    if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS) die("connect");
    conn *c = make_conn(fd);
    client *fresh = calloc(1, sizeof *fresh);
    fresh->arrived = arrived;
    c->owner = fresh;
    if (++connections > most_connections) most_connections = connections;
}

static void arrive(double arrived, double t) {
    if (arrived >= measured_from) {
        note(&behind, t - arrived);
        offered++;
        unanswered++;
    }
    with_mail++;
    if (is_kept && idle) {
        conn *c = idle;
        idle = c->next;
        ((client *)c->owner)->arrived = arrived;
        if (!go(c, MAIL, "MAIL FROM:<a@client.example>\r\n")) lose(c);
    } else if (connections >= MOST_CONNECTIONS) {
        with_mail--;
        if (arrived >= measured_from) too_many++, unanswered--;
    } else {
        open_one(arrived);
    }
}

static void over(client *one, int is_accepted, const char *reply) {
    double t = now();
    with_mail--;
    if (is_accepted && t >= measured_from && t < measured_until) done_in_time++;
    if (one->arrived < measured_from) return;
    unanswered--;
    count_code(reply);
    note(is_accepted ? &accepted : &refused[one->stage], t - one->arrived);
    if (is_accepted) note(&after_dot, t - one->dot_at);
}

static int rest(conn *c) {
    ((client *)c->owner)->stage = IDLE;
    c->next = idle;
    idle = c;
    return 1;
}

/* 0 when the connection is over. */
static int on_reply(conn *c, const char *reply) {
    client *one = c->owner;
    int code = atoi(reply);
    if (one->stage == QUIT) return 0;
    if (one->stage == RSET) return rest(c);
    if (one->stage == GREETING && code == 220) return go(c, EHLO, "EHLO client.example\r\n");
    if (one->stage == EHLO && code == 250) return go(c, MAIL, "MAIL FROM:<a@client.example>\r\n");
    if (one->stage == MAIL && code == 250) return go(c, RCPT, "RCPT TO:<b@example.org>\r\n");
    if (one->stage == RCPT && code == 250) return go(c, DATA, "DATA\r\n");
    if (one->stage == DATA && code == 354) {
        one->stage = DOT;
        one->dot_at = now();
        return say_content(c);
    }
    int is_accepted = one->stage == DOT && code / 100 == 2;
    enum stage stage = one->stage;
    over(one, is_accepted, reply);
    if (!is_kept || stage < MAIL) return go(c, QUIT, "QUIT\r\n");
    if (is_accepted || stage == MAIL) return rest(c);
    return go(c, RSET, "RSET\r\n");
}

static int take(conn *c) {
    for (;;) {
        char *text = begin_of(&c->in), *stop = length_of(&c->in) ? memmem(text, length_of(&c->in), "\r\n", 2) : NULL;
        if (!stop) return 1;
        if (text[3] == ' ' && !on_reply(c, text)) return 0;
        consume(&c->in, stop + 2 - text);
    }
}

static void run(double rate) {
    struct epoll_event events[64];
    double began = now(), next = began;
    int is_measuring = 0;
    for (;;) {
        double t = now();
        if (!is_measuring && t >= measured_from) {
            is_measuring = 1;
            most_connections = connections;
            puts("measuring");
            fflush(stdout);
        }
        while (next <= t && next < measured_until) {
            arrive(next, t);
            double warmth = (next - began) / WARM_UP_S;
            next += 1 / (rate * (warmth > 1 ? 1 : warmth < 0.05 ? 0.05 : warmth));
        }
        if (t >= measured_until && (!with_mail || t > measured_until + PATIENCE_S)) return;
        double wait = t >= measured_until ? 0.01 : next - now();
        struct timespec until_next = {0, wait > 0 ? wait * 1e9 : 0}; /* epoll_wait's milliseconds would make it late */
        int count = epoll_pwait2(epoll_fd, events, 64, &until_next, NULL);
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            if (((events[i].events & EPOLLOUT) && !flush(c)) || ((events[i].events & ~EPOLLOUT) && (!hear(c) || !take(c)))) lose(c);
        }
    }
}

static int by_size(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }

static void print_times(const char *name, times *t) {
    size_t n = t->count;
    qsort(t->seconds, n, sizeof *t->seconds, by_size);
    printf("\"%s\":{\"n\":%zu,\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f}", name, n, n ? t->seconds[n / 2] * 1e3 : 0,
           n ? t->seconds[n * 99 / 100] * 1e3 : 0, n ? t->seconds[n - 1] * 1e3 : 0);
}

static void print_all(double seconds) {
    const char *comma = "";
    printf("{\"offered\":%ld,\"goodput\":%.3f,\"most_connections\":%d,", offered, done_in_time / seconds, most_connections);
    print_times("accepted", &accepted);
    putchar(',');
    print_times("after_dot", &after_dot);
    putchar(',');
    print_times("behind", &behind);
    printf(",\"refused\":{");
    for (int i = 0; i < 9; i++)
        if (refused[i].count) {
            fputs(comma, stdout);
            print_times(STAGES[i], &refused[i]);
            comma = ",";
        }
    printf("},\"codes\":{");
    comma = "";
    for (int i = 0; i < 64 && codes[i].count; i++, comma = ",") printf("%s\"%s\":%ld", comma, codes[i].text, codes[i].count);
    printf("},\"errors\":{");
    comma = "";
    if (too_many) comma = ",", printf("\"too many connections at once\":%ld", too_many);
    for (int i = 0; i < 9; i++)
        if (lost[i]) printf("%s\"lost at %s\":%ld", comma, STAGES[i], lost[i]), comma = ",";
    if (unanswered) printf("%s\"no answer\":%ld", comma, unanswered);
    puts("}}");
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    port = atoi(argv[1]);
    is_kept = !strcmp(argv[4], "kept");
    begin_net();
    make_content();
    mails = (unsigned)time(NULL) * 10000u; /* other than those of an earlier run */
    measured_from = now() + WARM_UP_S;
    measured_until = measured_from + atof(argv[3]);
    run(atof(argv[2]));
    print_all(atof(argv[3]));
}
