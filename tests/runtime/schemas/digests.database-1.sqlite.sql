CREATE TABLE digest_code (
	hash VARCHAR(64) NOT NULL,
	code VARCHAR(64) NOT NULL,
	person TEXT NOT NULL,
	until FLOAT NOT NULL,
	tries INTEGER NOT NULL,
	PRIMARY KEY (hash)
);
CREATE TABLE digest_item (
	place TEXT NOT NULL,
	mail VARCHAR(64) NOT NULL,
	recipient TEXT NOT NULL,
	person TEXT NOT NULL,
	kept_at FLOAT NOT NULL,
	sent_at FLOAT NOT NULL,
	hidden INTEGER NOT NULL,
	PRIMARY KEY (place, mail, recipient)
);
CREATE TABLE digest_person (
	place TEXT NOT NULL,
	address TEXT NOT NULL,
	schedule VARCHAR(20) NOT NULL,
	language VARCHAR(10) NOT NULL,
	last_at FLOAT NOT NULL,
	retry_at FLOAT NOT NULL,
	tries INTEGER NOT NULL,
	refused_at FLOAT NOT NULL,
	PRIMARY KEY (place, address)
);
CREATE TABLE digest_request (
	seq INTEGER NOT NULL,
	place TEXT NOT NULL,
	kind VARCHAR(20) NOT NULL,
	mail VARCHAR(64) NOT NULL,
	recipient TEXT NOT NULL,
	person TEXT NOT NULL,
	tenant TEXT NOT NULL,
	asked_at FLOAT NOT NULL,
	state VARCHAR(20) NOT NULL,
	decided_at FLOAT NOT NULL,
	decided_by VARCHAR(200) NOT NULL,
	PRIMARY KEY (seq)
);
CREATE TABLE digest_schema (
	version INTEGER NOT NULL
);
CREATE TABLE digest_session (
	hash VARCHAR(64) NOT NULL,
	person TEXT NOT NULL,
	begun_at FLOAT NOT NULL,
	used_at FLOAT NOT NULL,
	PRIMARY KEY (hash)
);
CREATE TABLE digest_state (
	place TEXT NOT NULL,
	name VARCHAR(40) NOT NULL,
	number FLOAT NOT NULL,
	text TEXT NOT NULL,
	PRIMARY KEY (place, name)
);
CREATE INDEX digest_item_kept_at ON digest_item (place, kept_at);
CREATE INDEX digest_item_person ON digest_item (place, person, sent_at);
CREATE UNIQUE INDEX digest_request_one ON digest_request (place, kind, mail, recipient);
CREATE INDEX digest_request_state ON digest_request (place, state, asked_at);
