"""The Email Scanning API: submitEmail and status."""
