"""SMTP and LMTP: the session, its connection and its listener, on top of aiosmtpd."""
