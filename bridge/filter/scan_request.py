"""What the scanner is told about one mail besides its content: the envelope, and what is known about the client."""

from __future__ import annotations

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.mail.transaction import Transaction


def request_for(tx: Transaction, tenant: str | None) -> AnalysisRequest:
    """Names the client only if we were told who it is: otherwise it is our own mail server."""
    client = tx.session.named_client
    return AnalysisRequest(
        BorderMtaData(
            envelope_from=tx.envelope.sender,
            envelope_recipients=tx.envelope.addresses,
            remote_address=client.address,
            sender_helo=client.helo,
        ),
        tenant,
        tx.id,
        client,
    )
