CREATE TABLE console_attempt (
	seq INTEGER NOT NULL,
	about VARCHAR(120) NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (seq)
);
CREATE TABLE console_audit (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at FLOAT NOT NULL,
	name VARCHAR(100) NOT NULL,
	role VARCHAR(20) NOT NULL,
	address VARCHAR(64) NOT NULL,
	action VARCHAR(60) NOT NULL,
	mail VARCHAR(64) NOT NULL,
	detail VARCHAR(1000) NOT NULL,
	result VARCHAR(20) NOT NULL,
	provider VARCHAR(300) DEFAULT '' NOT NULL,
	subject VARCHAR(255) DEFAULT '' NOT NULL
);
CREATE TABLE console_link (
	hash VARCHAR(64) NOT NULL,
	name VARCHAR(100) NOT NULL,
	until FLOAT NOT NULL,
	PRIMARY KEY (hash)
);
CREATE TABLE console_schema (
	version INTEGER NOT NULL,
	oldest_reader INTEGER
);
CREATE TABLE console_session (
	hash VARCHAR(64) NOT NULL,
	label VARCHAR(16) NOT NULL,
	name VARCHAR(100) NOT NULL,
	role VARCHAR(20) NOT NULL,
	tenants TEXT NOT NULL,
	provider VARCHAR(300) NOT NULL,
	address VARCHAR(64) NOT NULL,
	browser VARCHAR(300) NOT NULL,
	begun_at FLOAT NOT NULL,
	used_at FLOAT NOT NULL,
	subject VARCHAR(255) DEFAULT '' NOT NULL,
	member_of VARCHAR(300) DEFAULT '' NOT NULL,
	PRIMARY KEY (hash),
	UNIQUE (label)
);
CREATE TABLE console_user (
	name VARCHAR(100) NOT NULL,
	password VARCHAR(300) NOT NULL,
	role VARCHAR(20) NOT NULL,
	tenants TEXT NOT NULL,
	made_at FLOAT NOT NULL,
	seen_at FLOAT DEFAULT '0' NOT NULL,
	PRIMARY KEY (name)
);
CREATE INDEX console_attempt_about ON console_attempt (about, at);
CREATE INDEX console_audit_at ON console_audit (at);
CREATE INDEX console_audit_mail ON console_audit (mail, seq);
CREATE INDEX console_audit_name ON console_audit (name, seq);
CREATE INDEX console_audit_subject ON console_audit (subject, seq);
CREATE INDEX console_session_name ON console_session (name);
