"""The milter intake: the mail server keeps queue and delivery, we only give the answer.

From the wire inwards: `wire` (the protocol's numbers and tables), `codec` (bytes to events and
back, no I/O, no clock), `mail` (one mail being rebuilt), `connection` (one mail server's
connection), `transport` (sockets, timers, drain; what the daemon starts).
"""
