"""The Email Scanning API."""
