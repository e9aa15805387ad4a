CREATE TABLE public.used_release_token (
    code bytea NOT NULL,
    used_at double precision NOT NULL
);
CREATE TABLE public.used_release_token_schema (
    version integer NOT NULL
);
ALTER TABLE ONLY public.used_release_token
    ADD CONSTRAINT used_release_token_pkey PRIMARY KEY (code);
CREATE INDEX used_release_token_used_at ON public.used_release_token USING btree (used_at);
