CREATE TABLE quarantine (
	place TEXT NOT NULL,
	id TEXT NOT NULL,
	kept_at DOUBLE NOT NULL,
	sender TEXT NOT NULL,
	subject TEXT NOT NULL,
	listener TEXT NOT NULL,
	tenant TEXT NOT NULL,
	decision TEXT NOT NULL,
	state TEXT NOT NULL,
	about BLOB NOT NULL,
	releases BLOB NOT NULL,
	PRIMARY KEY (place, id)
);
CREATE TABLE quarantine_recipient (
	place TEXT NOT NULL,
	id TEXT NOT NULL,
	address TEXT NOT NULL,
	PRIMARY KEY (place, id, address)
);
CREATE TABLE quarantine_schema (
	version INTEGER NOT NULL
);
CREATE TABLE quarantine_tag (
	place TEXT NOT NULL,
	id TEXT NOT NULL,
	tag TEXT NOT NULL,
	PRIMARY KEY (place, id, tag)
);
CREATE INDEX quarantine_kept_at ON quarantine (kept_at);
CREATE INDEX quarantine_recipient_address ON quarantine_recipient (address);
