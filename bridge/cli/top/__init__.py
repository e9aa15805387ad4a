"""`scanbridge top`: a live view of a running daemon."""
