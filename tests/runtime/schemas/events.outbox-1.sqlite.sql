CREATE TABLE event_outbox (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	sink VARCHAR(32) NOT NULL,
	id VARCHAR(40) NOT NULL,
	type VARCHAR(32) NOT NULL,
	about VARCHAR(64) NOT NULL,
	time FLOAT NOT NULL,
	body BLOB NOT NULL,
	attempts INTEGER DEFAULT '0' NOT NULL,
	strikes INTEGER DEFAULT '0' NOT NULL,
	failed_at FLOAT DEFAULT '0' NOT NULL,
	next_at FLOAT DEFAULT '0' NOT NULL,
	is_dead BOOLEAN DEFAULT 0 NOT NULL,
	problem VARCHAR(300) DEFAULT '' NOT NULL
);
CREATE TABLE event_schema (
	version INTEGER NOT NULL
);
CREATE TABLE event_sink (
	name VARCHAR(32) NOT NULL,
	events BIGINT DEFAULT '0' NOT NULL,
	size_bytes BIGINT DEFAULT '0' NOT NULL,
	dead BIGINT DEFAULT '0' NOT NULL,
	lost BIGINT DEFAULT '0' NOT NULL,
	delivered_at FLOAT DEFAULT '0' NOT NULL,
	failing_since FLOAT DEFAULT '0' NOT NULL,
	problem VARCHAR(300) DEFAULT '' NOT NULL,
	owner VARCHAR(200) DEFAULT '' NOT NULL,
	lease_until FLOAT DEFAULT '0' NOT NULL,
	PRIMARY KEY (name)
);
CREATE INDEX event_outbox_aside ON event_outbox (sink, next_at) WHERE next_at > 0;
CREATE INDEX event_outbox_sink ON event_outbox (sink, is_dead, seq);
