CREATE TABLE public.turn (
    name character varying(500) NOT NULL,
    owner character varying(200) DEFAULT ''::character varying NOT NULL,
    until double precision DEFAULT '0'::double precision NOT NULL,
    done_at double precision DEFAULT '0'::double precision NOT NULL,
    result text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.turn_schema (
    version integer NOT NULL
);
ALTER TABLE ONLY public.turn
    ADD CONSTRAINT turn_pkey PRIMARY KEY (name);
