"""The List API."""
