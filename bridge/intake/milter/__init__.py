"""The milter intake: the mail server queues and delivers the mail, and we only give the answer.

From the wire inwards: `protocol` (numbers and tables), `codec` (bytes to events and back),
`client_info` and `mail` (what the events say about the client and the mail; `stalwart` is a
variant of `mail`), `answer` (the filter's outcome as frames), `connection` (one connection of a
mail server), `context` (what connections share), `server` (what the daemon starts).
"""
