"""Pages for users: their own held mail, at an address of its own."""
