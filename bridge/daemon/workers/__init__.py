"""Several processes that share ports, limits and counters under one supervisor."""
