"""`scanbridge check`: the command, and one file per subject that it checks."""
