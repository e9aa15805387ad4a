"""Decisions that arrive after a mail's deadline, kept until the mail server sends the mail again."""
