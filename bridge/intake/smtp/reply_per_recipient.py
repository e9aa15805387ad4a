"""The replies to the final dot where each recipient gets one: LMTP, and SMTP with PRDR.

Pure. If this is wrong, a mail server takes a mail as delivered to a recipient who does not have it, or sends it twice.
"""

from __future__ import annotations

from bridge.intake.smtp import replies
from bridge.mail.reply import Reply, weightiest


def replies_to_dot(
    decided: str | Reply | tuple[Reply, ...], recipients: int, *, is_prdr: bool
) -> tuple[str | Reply, ...]:
    """`decided`: for the whole mail, or for each accepted recipient, in order.

    PRDR (draft-hall-prdr) adds 353 before them, and a reply for the whole mail after them.
    """
    each = decided if isinstance(decided, tuple) else (decided,) * recipients
    if not is_prdr:
        return each
    return (replies.PRDR_BEGINS, *each, _summary(decided) if isinstance(decided, tuple) else decided)


def _summary(each: tuple[Reply, ...]) -> Reply:
    """Exim takes a refusal here as one for all recipients, so one acceptance is enough."""
    accepted = sum(reply.is_success for reply in each)
    if 0 < accepted < len(each):
        return Reply(250, "2.0.0", f"Ok: accepted for {accepted} of {len(each)} recipients")
    return weightiest(each) or each[0]
