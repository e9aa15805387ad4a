"""`scanbridge console`: the web console, and the people who may use it."""
