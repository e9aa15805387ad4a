CREATE TABLE public.event_outbox (
    seq bigint NOT NULL,
    sink character varying(32) NOT NULL,
    id character varying(40) NOT NULL,
    type character varying(32) NOT NULL,
    about character varying(64) NOT NULL,
    "time" double precision NOT NULL,
    body bytea NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    strikes integer DEFAULT 0 NOT NULL,
    failed_at double precision DEFAULT '0'::double precision NOT NULL,
    next_at double precision DEFAULT '0'::double precision NOT NULL,
    is_dead boolean DEFAULT false NOT NULL,
    problem character varying(300) DEFAULT ''::character varying NOT NULL
);
CREATE SEQUENCE public.event_outbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.event_outbox_seq_seq OWNED BY public.event_outbox.seq;
CREATE TABLE public.event_schema (
    version integer NOT NULL
);
CREATE TABLE public.event_sink (
    name character varying(32) NOT NULL,
    events bigint DEFAULT '0'::bigint NOT NULL,
    size_bytes bigint DEFAULT '0'::bigint NOT NULL,
    dead bigint DEFAULT '0'::bigint NOT NULL,
    lost bigint DEFAULT '0'::bigint NOT NULL,
    delivered_at double precision DEFAULT '0'::double precision NOT NULL,
    failing_since double precision DEFAULT '0'::double precision NOT NULL,
    problem character varying(300) DEFAULT ''::character varying NOT NULL,
    owner character varying(200) DEFAULT ''::character varying NOT NULL,
    lease_until double precision DEFAULT '0'::double precision NOT NULL
);
ALTER TABLE ONLY public.event_outbox ALTER COLUMN seq SET DEFAULT nextval('public.event_outbox_seq_seq'::regclass);
ALTER TABLE ONLY public.event_outbox
    ADD CONSTRAINT event_outbox_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.event_sink
    ADD CONSTRAINT event_sink_pkey PRIMARY KEY (name);
CREATE INDEX event_outbox_aside ON public.event_outbox USING btree (sink, next_at) WHERE (next_at > (0)::double precision);
CREATE INDEX event_outbox_sink ON public.event_outbox USING btree (sink, is_dead, seq);
