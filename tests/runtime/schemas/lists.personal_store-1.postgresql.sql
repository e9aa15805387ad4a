CREATE TABLE public.personal_list_entry (
    recipient character varying(320) NOT NULL,
    sender character varying(320) NOT NULL,
    kind character varying(10) NOT NULL,
    at double precision NOT NULL,
    by character varying(400) NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.personal_list_schema (
    version integer NOT NULL
);
CREATE TABLE public.personal_list_seq (
    seq bigint NOT NULL
);
ALTER TABLE ONLY public.personal_list_entry
    ADD CONSTRAINT personal_list_entry_pkey PRIMARY KEY (recipient, sender);
CREATE INDEX personal_list_entry_seq ON public.personal_list_entry USING btree (seq);
