"""The scanning service as seen from the bridge: submit a mail, get a result or a named error."""
