CREATE TABLE public.console_attempt (
    seq bigint NOT NULL,
    about character varying(120) NOT NULL,
    at double precision NOT NULL
);
CREATE SEQUENCE public.console_attempt_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.console_attempt_seq_seq OWNED BY public.console_attempt.seq;
CREATE TABLE public.console_audit (
    seq bigint NOT NULL,
    at double precision NOT NULL,
    name character varying(100) NOT NULL,
    role character varying(20) NOT NULL,
    address character varying(64) NOT NULL,
    action character varying(60) NOT NULL,
    mail character varying(64) NOT NULL,
    detail character varying(1000) NOT NULL,
    result character varying(20) NOT NULL,
    provider character varying(300) DEFAULT ''::character varying NOT NULL,
    subject character varying(255) DEFAULT ''::character varying NOT NULL
);
CREATE SEQUENCE public.console_audit_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.console_audit_seq_seq OWNED BY public.console_audit.seq;
CREATE TABLE public.console_link (
    hash character varying(64) NOT NULL,
    name character varying(100) NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE public.console_schema (
    version integer NOT NULL,
    oldest_reader integer
);
CREATE TABLE public.console_session (
    hash character varying(64) NOT NULL,
    label character varying(16) NOT NULL,
    name character varying(100) NOT NULL,
    role character varying(20) NOT NULL,
    tenants text NOT NULL,
    provider character varying(300) NOT NULL,
    address character varying(64) NOT NULL,
    browser character varying(300) NOT NULL,
    begun_at double precision NOT NULL,
    used_at double precision NOT NULL,
    subject character varying(255) DEFAULT ''::character varying NOT NULL,
    member_of character varying(300) DEFAULT ''::character varying NOT NULL
);
CREATE TABLE public.console_user (
    name character varying(100) NOT NULL,
    password character varying(300) NOT NULL,
    role character varying(20) NOT NULL,
    tenants text NOT NULL,
    made_at double precision NOT NULL,
    seen_at double precision DEFAULT '0'::double precision NOT NULL
);
ALTER TABLE ONLY public.console_attempt ALTER COLUMN seq SET DEFAULT nextval('public.console_attempt_seq_seq'::regclass);
ALTER TABLE ONLY public.console_audit ALTER COLUMN seq SET DEFAULT nextval('public.console_audit_seq_seq'::regclass);
ALTER TABLE ONLY public.console_attempt
    ADD CONSTRAINT console_attempt_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.console_audit
    ADD CONSTRAINT console_audit_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.console_link
    ADD CONSTRAINT console_link_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.console_session
    ADD CONSTRAINT console_session_label_key UNIQUE (label);
ALTER TABLE ONLY public.console_session
    ADD CONSTRAINT console_session_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.console_user
    ADD CONSTRAINT console_user_pkey PRIMARY KEY (name);
CREATE INDEX console_attempt_about ON public.console_attempt USING btree (about, at);
CREATE INDEX console_audit_at ON public.console_audit USING btree (at);
CREATE INDEX console_audit_mail ON public.console_audit USING btree (mail, seq);
CREATE INDEX console_audit_name ON public.console_audit USING btree (name, seq);
CREATE INDEX console_audit_subject ON public.console_audit USING btree (subject, seq);
CREATE INDEX console_session_name ON public.console_session USING btree (name);
