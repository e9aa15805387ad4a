CREATE TABLE public.late_decision (
    key bytea NOT NULL,
    mark bytea NOT NULL,
    changed_at double precision NOT NULL,
    owner character varying(200) NOT NULL,
    result text
);
CREATE TABLE public.late_schema (
    version integer NOT NULL
);
ALTER TABLE ONLY public.late_decision
    ADD CONSTRAINT late_decision_pkey PRIMARY KEY (key);
CREATE INDEX late_decision_changed_at ON public.late_decision USING btree (changed_at);
