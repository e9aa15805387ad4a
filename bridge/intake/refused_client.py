"""A client that is refused before there is a mail: for metrics and the history. The log has its own lines."""

from __future__ import annotations

from typing import assert_never

from bridge.filter import mail_rates, rule_names
from bridge.intake.connection_limits import Refusal
from bridge.mail.reply import Reply
from bridge.runtime.value import value


@value
class RefusedClient:
    """Which client was refused, at which stage, and why."""

    stage: str  # connect, mail, data
    client: str | None  # its address; None: on a unix socket
    sender: str
    reason: str  # the label of the metric
    rule: str
    reply: Reply | None = None  # None: the connection was closed without a word
    is_stopped: bool = False  # the listener was closing


def too_many(stage: str, client: str | None, sender: str, reply: Reply) -> RefusedClient:
    """This client has sent too many mails in the last minute."""
    return RefusedClient(stage, client, sender, mail_rates.LIMIT, rule_names.of_limit(mail_rates.LIMIT), reply)


def rule_of(refusal: Refusal) -> str:
    """The place in the configuration that decides on this refusal."""
    match refusal:
        case Refusal.UNTRUSTED:
            return rule_names.TRUSTED_CLIENTS
        case Refusal.FULL:
            return rule_names.of_limit("max_connections")
        case Refusal.CLIENT_FULL:
            return rule_names.of_limit("max_connections_per_client")
        case _:
            assert_never(refusal)
