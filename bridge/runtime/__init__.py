"""What a long-running Python program needs and no mail server knows: durable files, TLS, databases, units, timers."""
