"""Digests: recipients are told which mail is held for them, and get links to act on it."""
