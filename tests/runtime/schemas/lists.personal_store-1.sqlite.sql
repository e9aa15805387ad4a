CREATE TABLE personal_list_entry (
	recipient VARCHAR(320) NOT NULL,
	sender VARCHAR(320) NOT NULL,
	kind VARCHAR(10) NOT NULL,
	at FLOAT NOT NULL,
	"by" VARCHAR(400) NOT NULL,
	seq INTEGER NOT NULL,
	PRIMARY KEY (recipient, sender)
);
CREATE TABLE personal_list_schema (
	version INTEGER NOT NULL
);
CREATE TABLE personal_list_seq (
	seq BIGINT NOT NULL
);
CREATE INDEX personal_list_entry_seq ON personal_list_entry (seq);
