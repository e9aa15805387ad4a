CREATE TABLE quarantine (
	id TEXT PRIMARY KEY, kept_at REAL NOT NULL, sender TEXT NOT NULL, subject TEXT NOT NULL,
	listener TEXT NOT NULL, tenant TEXT NOT NULL, decision TEXT NOT NULL, state TEXT NOT NULL,
	about BLOB NOT NULL, releases BLOB NOT NULL
);
CREATE TABLE quarantine_recipient (id TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (id, address));
CREATE TABLE quarantine_tag (id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (id, tag));
CREATE INDEX quarantine_kept_at ON quarantine (kept_at);
CREATE INDEX quarantine_recipient_address ON quarantine_recipient (address);
PRAGMA user_version=1;
