"""What a list entry means: its canonical spelling, what it matches, and a file for look-ups in microseconds.

Shared by the service, which matches mail against its lists during the scan, and by the bridge, which
does so at MAIL and RCPT: a list means the same in both. Knows nothing of databases, HTTP or SMTP.
"""
