"""Pages on which users see their own held mail, at a separate address."""
