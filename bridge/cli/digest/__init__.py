"""`scanbridge digest`: tell users about held mail, and serve their pages."""
