"""Handing mail on: to the next hop, to a Maildir, into the quarantine. Nothing here decides whether to."""
