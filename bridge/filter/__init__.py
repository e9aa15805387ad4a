"""One mail's way from submission to reply, the same for every protocol."""
