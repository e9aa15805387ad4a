CREATE TABLE late_decision (
	"key" BLOB NOT NULL,
	mark BLOB NOT NULL,
	changed_at FLOAT NOT NULL,
	owner VARCHAR(200) NOT NULL,
	result TEXT,
	PRIMARY KEY ("key")
);
CREATE TABLE late_schema (
	version INTEGER NOT NULL
);
CREATE INDEX late_decision_changed_at ON late_decision (changed_at);
