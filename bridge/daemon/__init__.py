"""Puts the parts together from the configuration and keeps them running. The only place that wires."""
