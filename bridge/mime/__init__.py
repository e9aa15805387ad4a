"""What a mail contains, in every way that a mail program might read it."""
