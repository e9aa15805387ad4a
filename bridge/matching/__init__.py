"""What an entry of a list means: its one spelling, whom it matches, and a file that answers in microseconds.

Shared by the service, which matches mail against its lists while it scans, and by the bridge, which
does it at the door: so a list means the same in both. Knows nothing of databases, HTTP or SMTP.
"""
