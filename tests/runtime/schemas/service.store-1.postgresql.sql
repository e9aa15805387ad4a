CREATE TABLE public.analysis (
    ggrid character varying(36) NOT NULL,
    tenant character varying(36) NOT NULL,
    created character varying(32) NOT NULL,
    completed character varying(32) NOT NULL,
    decision character varying(16) NOT NULL,
    verdict character varying(64) NOT NULL,
    tags text NOT NULL,
    score double precision NOT NULL,
    size bigint NOT NULL
);
CREATE TABLE public.api_key (
    digest character varying(64) NOT NULL,
    name character varying(100) NOT NULL,
    created_at character varying(32) NOT NULL,
    revoked_at character varying(32)
);
CREATE TABLE public.clock (
    id integer NOT NULL,
    value bigint NOT NULL
);
CREATE TABLE public.list_entry (
    scope character varying(36) NOT NULL,
    name character varying(64) NOT NULL,
    entry text NOT NULL,
    shown text,
    comment text NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.list_removal (
    seq bigint NOT NULL,
    scope character varying(36) NOT NULL,
    name character varying(64) NOT NULL,
    entry text NOT NULL,
    removed_at double precision NOT NULL
);
CREATE TABLE public.list_state (
    scope character varying(36) NOT NULL,
    name character varying(64) NOT NULL,
    size bigint NOT NULL
);
CREATE TABLE public.schema_version (
    version integer NOT NULL
);
ALTER TABLE ONLY public.analysis
    ADD CONSTRAINT analysis_pkey PRIMARY KEY (ggrid);
ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (digest);
ALTER TABLE ONLY public.clock
    ADD CONSTRAINT clock_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.list_entry
    ADD CONSTRAINT list_entry_pkey PRIMARY KEY (scope, name, entry);
ALTER TABLE ONLY public.list_removal
    ADD CONSTRAINT list_removal_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.list_state
    ADD CONSTRAINT list_state_pkey PRIMARY KEY (scope, name);
CREATE INDEX analysis_completed ON public.analysis USING btree (completed);
CREATE INDEX list_entry_seq ON public.list_entry USING btree (seq);
