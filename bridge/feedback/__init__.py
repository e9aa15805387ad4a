"""Feedback: mail that people report as spam or as not spam, and who learns from it."""
