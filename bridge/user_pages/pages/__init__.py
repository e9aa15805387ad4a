"""The pages for users."""
