"""General tools of a long-running program: durable files, TLS, databases, units, timers. Nothing here knows mail."""
