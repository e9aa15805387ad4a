"""The web console: a process of its own that shows what happens and lets people act. Begin with `routes`."""
