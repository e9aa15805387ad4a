"""`scanbridge trace`: every step that a mail would go through, without delivering or storing it."""
