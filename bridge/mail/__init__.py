"""The vocabulary of a mail: session, envelope, message, transaction, reply. Imports nothing of ours."""
