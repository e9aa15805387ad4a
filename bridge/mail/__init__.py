"""The vocabulary of a mail: session, envelope, message, transaction, reply. Knows no protocol and no network."""
