CREATE TABLE learning_schema (
	version INTEGER NOT NULL
);
CREATE TABLE learning_scope (
	scope VARCHAR(36) NOT NULL,
	version BIGINT NOT NULL,
	PRIMARY KEY (scope)
);
CREATE TABLE learning_vote (
	scope VARCHAR(36) NOT NULL,
	mail VARCHAR(64) NOT NULL,
	reporter VARCHAR(64) NOT NULL,
	kind VARCHAR(10) NOT NULL,
	sender VARCHAR(400) NOT NULL,
	origin VARCHAR(64) NOT NULL,
	signals TEXT NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (scope, mail, reporter)
);
CREATE INDEX learning_vote_at ON learning_vote (scope, at);
