CREATE TABLE analysis (
	ggrid VARCHAR(36) NOT NULL,
	tenant VARCHAR(36) NOT NULL,
	created VARCHAR(32) NOT NULL,
	completed VARCHAR(32) NOT NULL,
	decision VARCHAR(16) NOT NULL,
	verdict VARCHAR(64) NOT NULL,
	tags TEXT NOT NULL,
	score FLOAT NOT NULL,
	size BIGINT NOT NULL,
	PRIMARY KEY (ggrid)
);
CREATE TABLE api_key (
	digest VARCHAR(64) NOT NULL,
	name VARCHAR(100) NOT NULL,
	created_at VARCHAR(32) NOT NULL,
	revoked_at VARCHAR(32),
	PRIMARY KEY (digest)
);
CREATE TABLE clock (
	id INTEGER NOT NULL,
	value BIGINT NOT NULL,
	PRIMARY KEY (id)
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
CREATE TABLE list_entry (
	scope VARCHAR(36) NOT NULL,
	name VARCHAR(64) NOT NULL,
	entry TEXT NOT NULL,
	shown TEXT,
	comment TEXT NOT NULL,
	seq BIGINT NOT NULL,
	PRIMARY KEY (scope, name, entry)
)
 WITHOUT ROWID

;
CREATE TABLE list_removal (
	seq BIGINT NOT NULL,
	scope VARCHAR(36) NOT NULL,
	name VARCHAR(64) NOT NULL,
	entry TEXT NOT NULL,
	removed_at FLOAT NOT NULL,
	PRIMARY KEY (seq)
);
CREATE TABLE list_state (
	scope VARCHAR(36) NOT NULL,
	name VARCHAR(64) NOT NULL,
	size BIGINT NOT NULL,
	PRIMARY KEY (scope, name)
);
CREATE TABLE schema_version (
	version INTEGER NOT NULL
);
CREATE INDEX analysis_completed ON analysis (completed);
CREATE INDEX learning_vote_at ON learning_vote (scope, at);
CREATE INDEX list_entry_seq ON list_entry (seq);
