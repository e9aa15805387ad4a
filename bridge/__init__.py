"""scanbridge: lets any mail server use an HTTP e-mail scanning service.

A mail passes through the packages in this order: `intake` (SMTP, LMTP, milter) builds a
transaction, `filter` admits it and decides, `scanner` asks the service, `relay` sends it on and
`quarantine` keeps it. `mail` and `api` define the vocabulary, `daemon` wires everything together,
and `cli` has the commands.
"""

__version__ = "1.0.0"
