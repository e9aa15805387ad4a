"""Analyses through a queue in NATS: API nodes put mail in, any number of workers take it out."""
