CREATE TABLE public.digest_code (
    hash character varying(64) NOT NULL,
    code character varying(64) NOT NULL,
    person text NOT NULL,
    until double precision NOT NULL,
    tries integer NOT NULL
);
CREATE TABLE public.digest_item (
    place text NOT NULL,
    mail character varying(64) NOT NULL,
    recipient text NOT NULL,
    person text NOT NULL,
    kept_at double precision NOT NULL,
    sent_at double precision NOT NULL,
    hidden integer NOT NULL
);
CREATE TABLE public.digest_person (
    place text NOT NULL,
    address text NOT NULL,
    schedule character varying(20) NOT NULL,
    language character varying(10) NOT NULL,
    last_at double precision NOT NULL,
    retry_at double precision NOT NULL,
    tries integer NOT NULL,
    refused_at double precision NOT NULL
);
CREATE TABLE public.digest_request (
    seq bigint NOT NULL,
    place text NOT NULL,
    kind character varying(20) NOT NULL,
    mail character varying(64) NOT NULL,
    recipient text NOT NULL,
    person text NOT NULL,
    tenant text NOT NULL,
    asked_at double precision NOT NULL,
    state character varying(20) NOT NULL,
    decided_at double precision NOT NULL,
    decided_by character varying(200) NOT NULL
);
CREATE SEQUENCE public.digest_request_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.digest_request_seq_seq OWNED BY public.digest_request.seq;
CREATE TABLE public.digest_schema (
    version integer NOT NULL
);
CREATE TABLE public.digest_session (
    hash character varying(64) NOT NULL,
    person text NOT NULL,
    begun_at double precision NOT NULL,
    used_at double precision NOT NULL
);
CREATE TABLE public.digest_state (
    place text NOT NULL,
    name character varying(40) NOT NULL,
    number double precision NOT NULL,
    text text NOT NULL
);
ALTER TABLE ONLY public.digest_request ALTER COLUMN seq SET DEFAULT nextval('public.digest_request_seq_seq'::regclass);
ALTER TABLE ONLY public.digest_code
    ADD CONSTRAINT digest_code_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.digest_item
    ADD CONSTRAINT digest_item_pkey PRIMARY KEY (place, mail, recipient);
ALTER TABLE ONLY public.digest_person
    ADD CONSTRAINT digest_person_pkey PRIMARY KEY (place, address);
ALTER TABLE ONLY public.digest_request
    ADD CONSTRAINT digest_request_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.digest_session
    ADD CONSTRAINT digest_session_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.digest_state
    ADD CONSTRAINT digest_state_pkey PRIMARY KEY (place, name);
CREATE INDEX digest_item_kept_at ON public.digest_item USING btree (place, kept_at);
CREATE INDEX digest_item_person ON public.digest_item USING btree (place, person, sent_at);
CREATE UNIQUE INDEX digest_request_one ON public.digest_request USING btree (place, kind, mail, recipient);
CREATE INDEX digest_request_state ON public.digest_request USING btree (place, state, asked_at);
