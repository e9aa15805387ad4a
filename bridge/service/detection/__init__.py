"""Phishing: signals that a mail gives, and a small linear model that adds them up."""
