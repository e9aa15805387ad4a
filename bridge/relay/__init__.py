"""Handing mail on to the next hop, over SMTP, LMTP or into a Maildir. Nothing here decides whether to."""
