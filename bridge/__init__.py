"""scanbridge: lets any mail server use an HTTP e-mail scanning service.

A mail walks through the packages in this order: `intake` (SMTP, LMTP, milter) builds a
transaction, `filter` admits it and decides, `scanner` asks the service, `relay` hands it on and `quarantine` keeps it.
`mail` and `api` hold the vocabulary, `daemon` wires, `cli` is what people type.
"""

__version__ = "0.1.0"
