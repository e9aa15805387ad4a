"""What happened to each mail, kept for weeks: written off the path of the mail, searched by the commands."""
