"""Events: what happened, told to other programs: a file, a webhook, syslog, NATS."""
