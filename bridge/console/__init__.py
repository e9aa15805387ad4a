"""The web console: a separate process that shows what happens to mail and lets people act. Start with `routes`."""
