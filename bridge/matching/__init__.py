"""What an entry of a list means: its canonical spelling, what it matches, and a file for fast lookups.

Shared by the service, which matches mail against its lists during a scan, and the bridge, which
matches MAIL and RCPT, so that a list means the same in both. Knows nothing about databases, HTTP or SMTP.
"""
