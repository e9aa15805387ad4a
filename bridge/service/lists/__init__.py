"""The List API: endpoints, the lists in the database, and the index in memory that mail is matched against."""
