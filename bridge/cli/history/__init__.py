"""The commands that read the history: `history`, `explain` and `stats`."""
