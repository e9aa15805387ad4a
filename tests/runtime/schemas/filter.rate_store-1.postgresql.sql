CREATE TABLE public.mail_rate (
    minute bigint NOT NULL,
    client character varying(100) NOT NULL,
    mails bigint NOT NULL
);
CREATE TABLE public.rate_schema (
    version integer NOT NULL,
    oldest_reader integer
);
ALTER TABLE ONLY public.mail_rate
    ADD CONSTRAINT mail_rate_pkey PRIMARY KEY (minute, client);
