"""Mail that is kept: stored durably, found again, released once."""
