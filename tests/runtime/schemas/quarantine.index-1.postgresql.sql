CREATE TABLE public.quarantine (
    place text NOT NULL,
    id text NOT NULL,
    kept_at double precision NOT NULL,
    sender text NOT NULL,
    subject text NOT NULL,
    listener text NOT NULL,
    tenant text NOT NULL,
    decision text NOT NULL,
    state text NOT NULL,
    about bytea NOT NULL,
    releases bytea NOT NULL
);
CREATE TABLE public.quarantine_recipient (
    place text NOT NULL,
    id text NOT NULL,
    address text NOT NULL
);
CREATE TABLE public.quarantine_schema (
    version integer NOT NULL
);
CREATE TABLE public.quarantine_tag (
    place text NOT NULL,
    id text NOT NULL,
    tag text NOT NULL
);
ALTER TABLE ONLY public.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (place, id);
ALTER TABLE ONLY public.quarantine_recipient
    ADD CONSTRAINT quarantine_recipient_pkey PRIMARY KEY (place, id, address);
ALTER TABLE ONLY public.quarantine_tag
    ADD CONSTRAINT quarantine_tag_pkey PRIMARY KEY (place, id, tag);
CREATE INDEX quarantine_kept_at ON public.quarantine USING btree (kept_at);
CREATE INDEX quarantine_recipient_address ON public.quarantine_recipient USING btree (address);
