CREATE TABLE public.feedback_count (
    kind character varying(10) NOT NULL,
    state character varying(20) NOT NULL,
    number bigint NOT NULL
);
CREATE TABLE public.feedback_report (
    mail character varying(100) NOT NULL,
    person character varying(400) NOT NULL,
    kind character varying(10) NOT NULL,
    state character varying(20) NOT NULL,
    at double precision NOT NULL,
    size bigint NOT NULL,
    content bytea
);
CREATE TABLE public.feedback_schema (
    version integer NOT NULL
);
ALTER TABLE ONLY public.feedback_count
    ADD CONSTRAINT feedback_count_pkey PRIMARY KEY (kind, state);
ALTER TABLE ONLY public.feedback_report
    ADD CONSTRAINT feedback_report_pkey PRIMARY KEY (mail, person);
CREATE INDEX feedback_report_at ON public.feedback_report USING btree (at);
CREATE INDEX feedback_report_state ON public.feedback_report USING btree (state, at);
