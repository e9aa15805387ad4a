"""The HTTP API at the admin address: what happened to mails, for consoles and for programs of the operators."""
