"""Events: what happened, reported to other programs through a file, a webhook, syslog or NATS."""
