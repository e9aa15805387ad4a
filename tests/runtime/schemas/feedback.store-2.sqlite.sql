CREATE TABLE feedback_count (
	kind VARCHAR(10) NOT NULL,
	state VARCHAR(20) NOT NULL,
	number INTEGER NOT NULL,
	PRIMARY KEY (kind, state)
);
CREATE TABLE feedback_report (
	mail VARCHAR(100) NOT NULL,
	person VARCHAR(400) NOT NULL,
	kind VARCHAR(10) NOT NULL,
	state VARCHAR(20) NOT NULL,
	at FLOAT NOT NULL,
	size INTEGER NOT NULL,
	content BLOB,
	about TEXT,
	PRIMARY KEY (mail, person)
);
CREATE TABLE feedback_schema (
	version INTEGER NOT NULL
);
CREATE INDEX feedback_report_at ON feedback_report (at);
CREATE INDEX feedback_report_state ON feedback_report (state, at);
