CREATE TABLE used_release_token (
	code BLOB NOT NULL,
	used_at FLOAT NOT NULL,
	PRIMARY KEY (code)
);
CREATE TABLE used_release_token_schema (
	version INTEGER NOT NULL
);
CREATE INDEX used_release_token_used_at ON used_release_token (used_at);
