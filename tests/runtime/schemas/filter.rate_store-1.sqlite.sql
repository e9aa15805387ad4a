CREATE TABLE mail_rate (
	minute BIGINT NOT NULL,
	client VARCHAR(100) NOT NULL,
	mails BIGINT NOT NULL,
	PRIMARY KEY (minute, client)
);
CREATE TABLE rate_schema (
	version INTEGER NOT NULL,
	oldest_reader INTEGER
);
