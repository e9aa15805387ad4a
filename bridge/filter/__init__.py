"""The path of one mail from complete content to reply, the same for every protocol."""
