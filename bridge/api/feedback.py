"""Feedback as data: what a client of the included service says about a mail that people have reported.

An extension of the Email Scanning API: other services do not have it. The bridge and the service share this file.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any

from bridge.api.scanning import BorderMtaData
from bridge.runtime.value import value

FEEDBACK_PATH = "/v1/feedback"
FEEDBACK_KINDS = ("spam", "ham")
MAX_REPORTER = 400  # characters


@value
class FeedbackRequest:
    """MessageFeedback: the `parameters` part of a report."""

    kind: str  # one of FEEDBACK_KINDS
    reporter: str = field(repr=False)  # any value that stays the same for this person
    border: BorderMtaData | None = None  # None: unknown, as with a mail from a file
    tenant_uid: str | None = None
    ggrid: str = ""  # of the mail's analysis, if it is known

    def to_json(self) -> bytes:
        value: dict[str, Any] = {"kind": self.kind, "reporter": self.reporter[:MAX_REPORTER]}
        if self.border is not None:
            value["borderMtaData"] = {
                "envelopeFrom": self.border.envelope_from,
                "envelopeRecipients": list(self.border.envelope_recipients),
                "remoteAddress": self.border.remote_address,
            }
        if self.tenant_uid is not None:
            value["tenantUid"] = self.tenant_uid
        if self.ggrid:
            value["ggrid"] = self.ggrid
        return json.dumps(value).encode("ascii")
