CREATE TABLE public.learning_schema (
    version integer NOT NULL
);
CREATE TABLE public.learning_scope (
    scope character varying(36) NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE public.learning_vote (
    scope character varying(36) NOT NULL,
    mail character varying(64) NOT NULL,
    reporter character varying(64) NOT NULL,
    kind character varying(10) NOT NULL,
    sender character varying(400) NOT NULL,
    origin character varying(64) NOT NULL,
    signals text NOT NULL,
    at double precision NOT NULL
);
ALTER TABLE ONLY public.learning_scope
    ADD CONSTRAINT learning_scope_pkey PRIMARY KEY (scope);
ALTER TABLE ONLY public.learning_vote
    ADD CONSTRAINT learning_vote_pkey PRIMARY KEY (scope, mail, reporter);
CREATE INDEX learning_vote_at ON public.learning_vote USING btree (scope, at);
