"""Envelope: sender, recipients and their ESMTP parameters, exactly as received.

Addresses carry no angle brackets; the null sender is "". They are text that encodes to exactly the
bytes the client sent (`intake.smtp.paths` refuses anything else).
"""

from __future__ import annotations

from bridge.runtime.value import value

# Bytes of address and parameters: a thousand long ones took 1.6 MiB for each connection, before the content. With
# ORCPT, this is enough for addresses of a hundred characters.
MAX_RECIPIENT_AVERAGE = 256
_FEW = 1000  # recipients: a lower limit on their number leaves as much room
RECIPIENTS_PER_WEIGHT = 20


@value
class Recipient:
    """One accepted RCPT: the address and its parameters (NOTIFY=..., ORCPT=...) in their original case."""

    address: str
    params: tuple[str, ...] = ()


@value
class Envelope:
    """Sender and recipients of one mail."""

    sender: str
    recipients: tuple[Recipient, ...] = ()
    params: tuple[str, ...] = ()  # of MAIL: SIZE=, BODY=, RET=, ENVID=, AUTH=, SMTPUTF8

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple([recipient.address for recipient in self.recipients])

    @property
    def smtputf8(self) -> bool:
        return any(p.upper() == "SMTPUTF8" for p in self.params)

    @property
    def eight_bit(self) -> bool:
        return any(p.upper() == "BODY=8BITMIME" for p in self.params)


def max_recipient_bytes(max_recipients: int) -> int:
    """How many bytes the recipients of one mail may have; one that exceeds it is still taken."""
    return MAX_RECIPIENT_AVERAGE * max(max_recipients, _FEW)


def memory_weight(recipients: int) -> int:
    """How much a mail counts for while it waits in memory to be recorded: a thousand recipients take a megabyte."""
    return 1 + max(0, recipients - 1) // RECIPIENTS_PER_WEIGHT
