"""`scanbridge lists`: the List API on the command line."""
