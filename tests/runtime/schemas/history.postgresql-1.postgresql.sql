CREATE TABLE public.history_later (
    at double precision,
    id text,
    event text,
    by text,
    text text
);
CREATE TABLE public.history_mail (
    at double precision,
    id text,
    session text,
    client text,
    helo text,
    sender text,
    recipients text,
    size bigint,
    message_id text,
    subject text,
    reply text,
    ggrid text,
    wait_s double precision,
    scan_s double precision,
    relay_s double precision,
    queue_id text,
    next_id text,
    attempt text,
    mails integer,
    more text,
    listener text,
    tenant text,
    stage text,
    action text,
    decision text,
    verdict text,
    rule text,
    tags text,
    would text,
    late text,
    unscanned text,
    error text,
    list text,
    scanner text,
    keys text[]
)
PARTITION BY RANGE (at);
CREATE TABLE public.history_schema (
    version integer NOT NULL
);
CREATE INDEX history_later_at ON public.history_later USING btree (at);
CREATE INDEX history_later_id ON public.history_later USING btree (id);
CREATE INDEX history_mail_at ON ONLY public.history_mail USING btree (at);
CREATE INDEX history_mail_attempt ON ONLY public.history_mail USING btree (attempt) WHERE (attempt <> ''::text);
CREATE INDEX history_mail_client ON ONLY public.history_mail USING btree (client COLLATE "C");
CREATE INDEX history_mail_ggrid ON ONLY public.history_mail USING btree (ggrid);
CREATE INDEX history_mail_id ON ONLY public.history_mail USING btree (id);
CREATE INDEX history_mail_keys ON ONLY public.history_mail USING gin (keys);
CREATE INDEX history_mail_message_id ON ONLY public.history_mail USING btree (message_id);
CREATE INDEX history_mail_next_id ON ONLY public.history_mail USING btree (next_id);
CREATE INDEX history_mail_queue_id ON ONLY public.history_mail USING btree (queue_id);
CREATE INDEX history_mail_session ON ONLY public.history_mail USING btree (session);
CREATE INDEX history_mail_words ON ONLY public.history_mail USING gin (to_tsvector('simple'::regconfig, regexp_replace(subject, '[^[:alnum:]]+'::text, ' '::text, 'g'::text)));
