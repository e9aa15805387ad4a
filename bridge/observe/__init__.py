"""What operators see: log lines, metrics and traces. Nothing here decides on mail."""
