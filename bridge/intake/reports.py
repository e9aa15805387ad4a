"""What a listener reports besides the mails that it passes to the filter: for metrics and the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.intake.refused_client import RefusedClient


def _ignore(*_: object) -> None:
    """The default: nobody wants to know."""


@dataclass(frozen=True, slots=True)
class IntakeReports:
    """Each is called when it happens."""

    refused: Callable[[RefusedClient], None] = _ignore  # a connection: untrusted, limit; a request: token
    saturated: Callable[[RefusedClient], None] = _ignore  # a mail, at the stage: mail, data
    too_many: Callable[[RefusedClient], None] = _ignore  # a mail of a client that has sent too many
    cancelled: Callable[[RefusedClient], None] = _ignore  # a mail that its client or mail server abandoned
    limit: Callable[[str], None] = _ignore  # the name of the limit that a client has exceeded


NO_REPORTS = IntakeReports()
