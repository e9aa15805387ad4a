"""What happened to each mail, kept for weeks: written beside the mail's path, searched by the commands."""
