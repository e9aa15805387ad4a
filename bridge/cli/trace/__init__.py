"""`scanbridge trace`: every step that a mail would take, with no effect."""
