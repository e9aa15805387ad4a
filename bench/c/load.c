/* Closed-loop load: so many sessions at once, each sends one mail after another; one line of JSON at the end.
 *
 *   load smtp|milter|http PORT [-s sessions] [-m mails] [-n mails per connection, 0: all] [-l bytes] [-r recipients] [-t seconds] [-d]
 *
 * SMTP waits for every reply, as a client without PIPELINING; with -d, no two mails have an address or a domain in
 * common. The milter side plays Postfix, protocol version 6: it waits where the filter has not said that it will be
 * silent, and sends no step that the filter does not want. HTTP submits the mail to the scanner itself: what there is to
 * add to. */
#include "net.h"

enum stage { GREETING, EHLO, MAIL, RCPT, DATA, DOT, NEGOTIATION, STEP, ANSWER, LEAVING };

typedef struct session { conn *c; enum stage stage; int recipients, step, done; long number; double began, ended_data; } session;

/* What one milter mail is made of: bytes to send, and whether an answer is awaited after them. */
typedef struct step { buffer bytes; int is_last; } step;

static int is_milter, is_http, is_different, port, per_connection = 1, recipients = 1, is_built, step_count, greeting_steps;
static long mails = 1000, size = 4096, next_number, started, finished, accepted, refused, errors;
static double until = 1e18, *total_s, *final_s;
static buffer content; /* dot-stuffed, with the final dot */
static buffer request; /* HTTP: all of it */
static size_t mail_length;
static step steps[4096];

static void make_content(void) {
    const char *head = "Received: from client.example.org (client.example.org [192.0.2.7])\r\n\tby border.example.net (Postfix) with ESMTP id 4XyZ12345\r\n"
                       "\tfor <user0@example.net>; Thu, 1 Jan 2026 00:00:00 +0000 (UTC)\r\nFrom: Sender <sender@example.org>\r\nTo: User <user0@example.net>\r\n"
                       "Subject: a mail of a given size\r\nDate: Thu, 1 Jan 2026 00:00:00 +0000\r\nMessage-ID: <load@client.example.org>\r\n"
                       "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=us-ascii\r\nContent-Transfer-Encoding: 7bit\r\nX-Mailer: load\r\n\r\n";
    unsigned seed = 7;
    put(&content, head, strlen(head));
    while ((long)content.end < size) {
        char line[78];
        for (int i = 0; i < 76; i++) line[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(seed = seed * 1103515245 + 12345) >> 16 & 63];
        line[76] = '\r';
        line[77] = '\n';
        put(&content, line, 78);
    }
    mail_length = content.end;
    put(&content, ".\r\n", 3);
}

static void make_request(void) {
    static const char head[] = "--load\r\nContent-Disposition: form-data; name=\"parameters\"\r\nContent-Type: application/json\r\n\r\n"
                               "{\"borderMtaData\":{\"envelopeFrom\":\"sender@example.org\",\"envelopeRecipients\":[\"user0@example.net\"]}}"
                               "\r\n--load\r\nContent-Disposition: form-data; name=\"email\"; filename=\"mail.eml\"\r\n"
                               "Content-Type: message/rfc822\r\n\r\n",
                      tail[] = "\r\n--load--\r\n";
    char line[256];
    int n = snprintf(line, sizeof line,
                     "POST /v1/messageQueue/submitEmail HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=load\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     sizeof head - 1 + mail_length + sizeof tail - 1);
    put(&request, line, n);
    put(&request, head, sizeof head - 1);
    put(&request, content.data, mail_length);
    put(&request, tail, sizeof tail - 1);
}

/* --- milter: the mail as steps, once it is known what the filter wants -------------------------- */

static buffer gathered;

static void frame(char command, const void *data, size_t length) {
    uint32_t wire = htonl(length + 1);
    put(&gathered, &wire, 4);
    put(&gathered, &command, 1);
    put(&gathered, data, length);
}

static void wait_here(int is_last) {
    steps[step_count++] = (step){gathered, is_last};
    memset(&gathered, 0, sizeof gathered);
}

static void make_fields(uint32_t wanted) {
    char *at = content.data, *end = content.data + mail_length;
    while (strncmp(at, "\r\n", 2)) {
        char *stop = at;
        do stop = (char *)memchr(stop, '\n', end - stop) + 1;
        while (*stop == ' ' || *stop == '\t');
        buffer field = {0};
        char *colon = memchr(at, ':', stop - at);
        put(&field, at, colon - at);
        put(&field, "", 1);
        for (char *p = colon + (wanted & 0x100000 ? 1 : 2); p < stop - 2; p++)
            if (*p != '\r') put(&field, p, 1);
        put(&field, "", 1);
        frame('L', field.data, field.end);
        if (!(wanted & 0x80)) wait_here(0);
        free(field.data);
        at = stop;
    }
    frame('N', "", 0);
    if (!(wanted & 0x40000)) wait_here(0);
    for (at += 2; at < end;) {
        size_t some = end - at < 65535 ? end - at : 65535;
        frame('B', at, some);
        if (!(wanted & 0x80000)) wait_here(0);
        at += some;
    }
}

static void build(uint32_t wanted) {
    static const char macros[] = "Cj\0border.example.net\0{daemon_name}\0smtpd\0v\0Postfix 3.7", mail_macros[] = "Mi\0004XyZ12345",
                      client[] = "client.example.org\0004\x9c\x40" "192.0.2.7", end_macros[] = "Ei\0004XyZ12345";
    frame('D', macros, sizeof macros);
    frame('C', client, sizeof client);
    if (!(wanted & 0x1000)) wait_here(0);
    frame('H', "client.example.org", 19);
    if (!(wanted & 0x2000)) wait_here(0);
    if (gathered.end && step_count) { /* nobody waits for HELO: it goes with the mail, of every connection's first */
        put(&steps[step_count - 1].bytes, gathered.data, gathered.end);
        gathered.end = 0;
    }
    greeting_steps = step_count;
    if (gathered.end) { /* nothing of the greeting is answered: it is sent before the first step of the first mail */
        steps[step_count] = (step){gathered, 0};
        memset(&gathered, 0, sizeof gathered);
        greeting_steps = ++step_count;
        steps[step_count - 1].is_last = -1;
    }
    frame('D', mail_macros, sizeof mail_macros);
    frame('M', "<sender@example.org>", 21);
    if (!(wanted & 0x4000)) wait_here(0);
    for (int i = 0; i < recipients; i++) {
        char address[64];
        int n = snprintf(address, sizeof address, "<user%d@example.net>", i);
        frame('D', "R{rcpt_mailer}\0smtp", 20);
        frame('R', address, n + 1);
        if (!(wanted & 0x8000)) wait_here(0);
    }
    if (!(wanted & 0x200)) {
        frame('T', "", 0);
        if (!(wanted & 0x10000)) wait_here(0);
    }
    make_fields(wanted);
    frame('D', end_macros, sizeof end_macros);
    frame('E', "", 0);
    wait_here(1);
    is_built = 1;
}

/* --- sessions -------------------------------------------------------------------------------- */

static int has_more(void) { return started < mails && now() < until; }

static void lose(session *s);
static int next_mail(session *s);

static void begin(session *s) {
    while (has_more()) {
        started++;
        s->began = now();
        s->done = 0;
        s->c = dial(port);
        if (s->c) {
            static const char offer[] = "\0\0\0\rO\0\0\0\6\0\0\1\377\0\37\377\377";
            s->c->owner = s;
            s->stage = is_milter ? NEGOTIATION : GREETING;
            if (is_milter) say(s->c, offer, 17);
            if (is_http) next_mail(s);
            return;
        }
        errors++;
        finished++;
    }
    s->c = NULL;
}

static void leave(session *s) {
    end_conn(s->c);
    free(s->c);
    s->c = NULL;
}

static void lose(session *s) {
    if (s->stage != LEAVING) {
        errors++;
        finished++;
    }
    leave(s);
    begin(s);
}

static int send_step(session *s) {
    for (;; s->step++) {
        step *it = &steps[s->step];
        s->stage = STEP;
        if (it->is_last == 1) s->ended_data = now();
        if (!say(s->c, it->bytes.data, it->bytes.end)) return 0;
        if (it->is_last >= 0) return 1;
    }
}

static int next_mail(session *s) {
    if (is_http) {
        s->stage = ANSWER;
        s->ended_data = now();
        return say(s->c, request.data, request.end);
    }
    if (!is_milter) {
        char line[96];
        s->stage = MAIL;
        if (!is_different) return say_text(s->c, "MAIL FROM:<sender@example.org>\r\n");
        s->number = next_number++;
        snprintf(line, sizeof line, "MAIL FROM:<sender%ld@client%ld.example.org>\r\n", s->number, s->number);
        return say_text(s->c, line);
    }
    s->step = greeting_steps;
    return send_step(s);
}

/* One mail is over. */
static int over(session *s, int is_accepted) {
    double t = now();
    int is_at_end = is_milter && steps[s->step].is_last;
    total_s[accepted + refused] = t - s->began;
    final_s[accepted + refused] = t - s->ended_data;
    is_accepted ? accepted++ : refused++;
    finished++;
    s->done++;
    if ((!per_connection || s->done < per_connection) && has_more()) {
        started++;
        s->began = t;
        if (is_milter && !is_at_end) say(s->c, "\0\0\0\1A", 5);
        return next_mail(s);
    }
    s->stage = LEAVING;
    if (is_http) return 0;
    if (is_milter) {
        say(s->c, "\0\0\0\1Q", 5);
        return 0;
    }
    return say_text(s->c, "QUIT\r\n");
}

static int on_reply(session *s, int code) {
    char line[96];
    if (s->stage == LEAVING) return 0;
    if (s->stage == DOT) return over(s, code / 100 == 2);
    if (code >= 400) return over(s, 0);
    switch (s->stage) {
    case GREETING:
        s->stage = EHLO;
        return say_text(s->c, "EHLO client.example.org\r\n");
    case EHLO:
        return next_mail(s);
    case MAIL:
        s->recipients = 0;
        s->stage = RCPT;
        /* fall through */
    case RCPT:
        if (s->recipients < recipients) {
            if (is_different) snprintf(line, sizeof line, "RCPT TO:<user%d.%ld@host%ld.example.net>\r\n", s->recipients++, s->number, s->number);
            else snprintf(line, sizeof line, "RCPT TO:<user%d@example.net>\r\n", s->recipients++);
            return say_text(s->c, line);
        }
        s->stage = DATA;
        return say_text(s->c, "DATA\r\n");
    case DATA:
        s->stage = DOT;
        s->ended_data = now();
        return say(s->c, content.data, content.end);
    default:
        return 0;
    }
}

static int on_frame(session *s, char command, const char *data) {
    if (s->stage == NEGOTIATION) {
        uint32_t wanted;
        memcpy(&wanted, data + 8, 4);
        if (command != 'O') return 0;
        if (!is_built) build(ntohl(wanted));
        s->step = 0;
        return send_step(s);
    }
    int is_last = steps[s->step].is_last;
    if (strchr("hm+-bieq2p", command)) return 1; /* edits and progress: the decision follows */
    if (is_last || !strchr("cs", command)) return over(s, is_last && strchr("cad", command) != NULL);
    s->step++;
    return send_step(s);
}

static int take(session *s) {
    while (s->c && length_of(&s->c->in)) {
        char *text = begin_of(&s->c->in);
        size_t length = length_of(&s->c->in), used;
        int goes_on;
        if (is_milter) {
            uint32_t n;
            if (length < 5) return 1;
            memcpy(&n, text, 4);
            used = 4 + ntohl(n);
            if (length < used) return 1;
            goes_on = on_frame(s, text[4], text + 5);
        } else if (is_http) {
            char *end = memmem(text, length, "\r\n\r\n", 4);
            if (!end) return 1;
            *end = 0;
            char *declared = strcasestr(text, "\r\ncontent-length:");
            *end = '\r';
            used = end + 4 - text + (declared ? strtoul(declared + 17, NULL, 10) : 0);
            if (length < used) return 1;
            goes_on = over(s, !strncmp(text + 8, " 200", 4));
        } else {
            char *end = memmem(text, length, "\r\n", 2);
            if (!end) return 1;
            used = end + 2 - text;
            goes_on = text[3] == '-' ? 1 : on_reply(s, atoi(text));
        }
        if (!goes_on) return 0;
        consume(&s->c->in, used);
    }
    return 1;
}

static int by_size(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }

static void print_times(const char *name, double *times, long count) {
    qsort(times, count, sizeof *times, by_size);
    printf(",\"%s_p50_ms\":%.3f,\"%s_p99_ms\":%.3f", name, count ? times[count / 2] * 1e3 : 0, name, count ? times[count * 99 / 100] * 1e3 : 0);
}

int main(int argc, char **argv) {
    int sessions = 1, option;
    struct epoll_event events[256];
    if (argc < 3) return 2;
    is_milter = !strcmp(argv[1], "milter");
    is_http = !strcmp(argv[1], "http");
    port = atoi(argv[2]);
    optind = 3;
    while ((option = getopt(argc, argv, "s:m:n:l:r:t:d")) > 0) {
        if (option == 's') sessions = atoi(optarg);
        if (option == 'm') mails = atol(optarg);
        if (option == 'n') per_connection = atoi(optarg);
        if (option == 'l') size = atol(optarg);
        if (option == 'r') recipients = atoi(optarg);
        if (option == 't') until = now() + atof(optarg);
        if (option == 'd') is_different = 1;
    }
    next_number = (long)(now() * 1e6); /* other addresses in each run */
    begin_net();
    make_content();
    make_request();
    total_s = calloc(mails + 1, sizeof *total_s);
    final_s = calloc(mails + 1, sizeof *final_s);
    session *all = calloc(sessions, sizeof *all);
    double began = now(), silent_since = began;
    for (int i = 0; i < sessions; i++) begin(&all[i]);
    while (finished < started || has_more()) {
        long before = finished;
        int count = epoll_wait(epoll_fd, events, 256, 1000);
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            session *s = c->owner;
            if (((events[i].events & EPOLLOUT) && !flush(c)) || ((events[i].events & ~EPOLLOUT) && (!hear(c) || !take(s)))) lose(s);
        }
        if (finished != before) silent_since = now();
        if (now() - silent_since > 20) break; /* what is missing are errors */
    }
    double took = now() - began;
    printf("{\"mails\":%ld,\"accepted\":%ld,\"refused\":%ld,\"errors\":%ld,\"bytes\":%zu,\"seconds\":%.4f", finished, accepted, refused,
           errors + started - finished, mail_length, took);
    print_times("total", total_s, accepted + refused);
    print_times("final", final_s, accepted + refused);
    puts("}");
}
