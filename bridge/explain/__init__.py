"""What today's configuration and the quarantine add to the story of a mail, for `explain` and for the console."""
