"""What the next hop's answers mean for a mail: the relay's decisions, without any I/O.

There are two decisions. `after_envelope` reads the answers to MAIL, RCPT and DATA and decides whether the content is
sent, and for whom. `after_content` reads the answers to the final dot and decides which recipients have the mail.
Without pipelining, `is_settled` tells whether the next command is still worth sending.

For a client that gets one reply for the whole mail:

- If any recipient is refused at RCPT, no recipient gets the mail: it stops before the content, and the
  weightiest refusal (`weightiest`: 4xx before 5xx) is the reply for all.
- LMTP answers for each recipient after the dot, when it is too late to stop. If the answers differ,
  4xx wins here too: the client sends the mail again, and some recipients get it twice rather than
  one of them never.

A client that expects one reply per recipient (LMTP, PRDR) gets each recipient's own answer: the mail
goes to the recipients that the next hop accepts, and the others get their refusal.

If this is wrong, mail is lost (a failure read as success) or bounced (a 5xx that was the answer to
another recipient or another command). Knows nothing of sockets, timers or the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply, weightiest
from bridge.relay import client_replies
from bridge.relay.commands import Commands
from bridge.relay.connection import End
from bridge.relay.reply_reader import queue_id_in
from bridge.runtime.value import value

RefusedRecipients = Mapping[int, Reply]  # position in the envelope -> the answer to RCPT

# A refused RSET leaves the previous mail open, so the answer to MAIL says nothing about this mail.
_RSET_REFUSED = Reply(250, "", "RSET was refused")


@value
class SendContent:
    """The next hop waits for the content, for all recipients except the refused ones."""

    refused: RefusedRecipients


@value
class Stale:
    """A reused connection was already dead: MAIL was not answered, so a new connection may be tried."""


@value
class RefusedForAll:
    """One reply for all recipients."""

    reply: Reply
    must_hang_up: bool = False  # the next hop waits for content, or its state is unknown


@value
class AnsweredPerRecipient:
    """One reply per recipient, in envelope order; at least one is a refusal."""

    replies: tuple[Reply, ...]
    must_hang_up: bool = False


@value
class Lost:
    """The connection ended before everything was answered."""

    end: End = End.LOST
    unasked: Reply | None = None  # a reply to no command, if that ended the connection

    @property
    def is_goodbye(self) -> bool:
        """The next hop closed the connection, or said something before we did, as some do instead of a 421."""
        return self.end is End.LOST or self.unasked is not None

    @property
    def is_refusal(self) -> bool:
        """A refusal came that answers no command."""
        return self.unasked is not None and self.unasked.code >= 400

    @property
    def reply(self) -> Reply:
        return self.error().reply

    def error(self) -> NextHopError:
        if self.unasked is not None and self.is_refusal:  # in the middle of the content
            return NextHopError(client_replies.passed_on(self.unasked))
        return NextHopError(
            client_replies.LATE if self.end is End.LATE else client_replies.LOST, f"next hop: {self.end.value}"
        )

    def before_content(self) -> Lost:
        """Before the content, a 5xx that answers no command says nothing about the mail: it must not be bounced."""
        return Lost(self.end) if self.unasked is not None and self.unasked.code >= 500 else self


@value
class Delivered:
    """The next hop has accepted the mail for all recipients."""

    reply: Reply
    queue_id: str = ""  # the next hop's own, where its reply shows one
    replies: tuple[Reply, ...] = ()  # one per recipient, in envelope order


EnvelopeDecision = SendContent | Stale | RefusedForAll | AnsweredPerRecipient | Lost
ContentDecision = Delivered | RefusedForAll | AnsweredPerRecipient | Lost

SEND_TO_ALL = SendContent({})


# The envelope: answers up to DATA.


@value
class _EnvelopeAnswers:
    """The answers so far, by command; None where there is no answer, or no such command."""

    reset: Reply | None
    last_before_mail: Reply | None  # to RSET or XFORWARD
    mail: Reply | None
    recipients: Sequence[Reply]
    has_all_recipients: bool
    data: Reply | None


def after_envelope(
    commands: Commands, answers: Sequence[Reply], *, is_per_recipient: bool, is_reused: bool, lost: Lost | None
) -> EnvelopeDecision:
    """Decides on the content. `lost`: how the connection ended, None while it is open."""
    given = _by_command(commands, answers)
    if is_reused and lost is not None and lost.is_goodbye and (given.mail is None or given.mail.code == 421):
        return Stale()
    refusal = _refusal(given)
    if refusal is None:
        return SEND_TO_ALL if given.data is not None else (lost or Lost()).before_content()
    is_doubtful = _is_too_much(lost) or _is_out_of_step(given)
    if is_doubtful and _is_any_permanent((refusal, *given.recipients)):
        return RefusedForAll(client_replies.OUT_OF_PLACE, must_hang_up=True)
    # A next hop that waits for content cannot be stopped by a command, only by hanging up.
    must_hang_up = refusal.code < 400 or (given.data is not None and given.data.code < 400)
    each = _each_recipient(given) if is_per_recipient else None
    if each is None:
        return RefusedForAll(client_replies.passed_on(refusal), must_hang_up)
    if given.data is not None and given.data.code == 354 and any(reply.is_success for reply in each):
        return SendContent({position: reply for position, reply in enumerate(each) if not reply.is_success})
    not_sent = (
        client_replies.passed_on(given.data) if given.data is not None else (lost or Lost()).before_content().reply
    )
    return AnsweredPerRecipient(tuple(not_sent if reply.is_success else reply for reply in each), must_hang_up)


def is_settled(commands: Commands, answers: Sequence[Reply], *, is_per_recipient: bool) -> bool:
    """Whether the decision is already made, so that DATA is not sent only to be abandoned."""
    if not answers:
        return False
    last, after_mail = answers[-1], len(answers) - commands.before_mail - 1
    if after_mail == 0 and not last.is_success:
        return True
    is_refused_for_all = after_mail > 0 and last.is_temporary and not is_per_recipient
    if not is_refused_for_all and len(answers) < commands.count - 1:
        return False
    given = _by_command(commands, answers)
    each = _each_recipient(given) if is_per_recipient else None
    return _refusal(given) is not None and not any(reply.is_success for reply in each or ())


def is_refused_at_rcpt(commands: Commands, answers: Sequence[Reply]) -> bool:
    """Whether a refusal is about a recipient, not about the sender or about mail as such."""
    given = _by_command(commands, answers)
    return _refusal_of_mail(given) is None and weightiest(given.recipients) is not None


def _by_command(commands: Commands, answers: Sequence[Reply]) -> _EnvelopeAnswers:
    before_mail, count, answered = commands.before_mail, commands.count, len(answers)
    return _EnvelopeAnswers(
        reset=answers[0] if commands.has_reset and answered else None,
        last_before_mail=answers[:before_mail][-1] if before_mail and answered else None,
        mail=answers[before_mail] if answered > before_mail else None,
        recipients=answers[before_mail + 1 : count - 1],
        has_all_recipients=answered >= count - 1,
        data=answers[-1] if answered == count else None,
    )


def _refusal(given: _EnvelopeAnswers) -> Reply | None:
    """The refusal that speaks for the mail: that of MAIL, RCPT or DATA, in this order, since one causes the next."""
    refusal = _refusal_of_mail(given)
    if refusal is not None or given.mail is None:
        return refusal
    refusal = weightiest(given.recipients)
    if not given.has_all_recipients:  # a 4xx, which outweighs a 5xx, may be missing
        return refusal if refusal is not None and refusal.is_temporary else None
    if refusal is None and given.data is not None and given.data.code != 354:
        return given.data
    return refusal


def _refusal_of_mail(given: _EnvelopeAnswers) -> Reply | None:
    """The refusal after which the answers to RCPT mean nothing."""
    if given.reset is not None and not given.reset.is_success:
        return given.reset if given.reset.code == 421 else _RSET_REFUSED
    if given.mail is not None:
        return None if given.mail.is_success else given.mail
    last = given.last_before_mail  # a refused XFORWARD does no harm, unless the next hop closes the connection
    return last if last is not None and last.code == 421 else None


def _is_out_of_step(given: _EnvelopeAnswers) -> bool:
    """Whether the answers cannot be those to our commands: one too many has come before, and the last is yet to come.

    Only 354 lets the content be sent. Only a server that does not check the order of commands accepts a recipient after
    it refused the sender; such a server also answers 354.
    """
    if given.data is not None and given.data.code == 354:
        return False
    if given.data is not None and given.data.code < 400:
        return True
    is_mail_refused = given.mail is not None and given.mail.code >= 400
    return is_mail_refused and any(reply.is_success for reply in given.recipients)


def _each_recipient(given: _EnvelopeAnswers) -> tuple[Reply, ...] | None:
    """Each recipient's answer to RCPT; None if the answers are not theirs, not complete, or neither yes nor no."""
    if _refusal_of_mail(given) is not None or not given.has_all_recipients:
        return None
    if any(300 <= reply.code < 400 for reply in given.recipients):
        return None
    return tuple(map(_for_client, given.recipients))


# The content: answers to the final dot.


@value
class DotAnswers:
    """The answers that the dot gets: one for the mail, or in LMTP one for each recipient accepted at RCPT."""

    recipients: int  # in the envelope
    refused: RefusedRecipients
    is_lmtp: bool
    is_per_recipient: bool  # whether the client receives one reply per recipient

    @property
    def count(self) -> int:
        return self.recipients - len(self.refused) if self.is_lmtp else 1


def after_content(expected: DotAnswers, answers: Sequence[Reply], lost: Lost | None) -> ContentDecision:
    """Decides which recipients have the mail. `lost`: how the connection ended, None while it is open."""
    refusal = weightiest(answers)
    is_complete = len(answers) == expected.count
    # If a refusal follows a 250, the 250 may have been one answer too many, and the refusal the answer to the dot.
    is_doubtful = expected.count > 1 or _is_any_permanent(answers) or (lost is not None and lost.is_refusal)
    if is_complete and _is_too_much(lost) and is_doubtful:
        return RefusedForAll(client_replies.OUT_OF_PLACE)
    if expected.count > 1 and any(300 <= reply.code < 400 for reply in answers):  # the others may be off by one
        return RefusedForAll(client_replies.OUT_OF_PLACE, must_hang_up=True)
    if refusal is None and is_complete and not expected.refused:
        each = tuple(answers) if expected.is_lmtp else (answers[0],) * expected.recipients
        return Delivered(answers[0], queue_id_in(answers[0]), each)
    must_hang_up = refusal is not None and refusal.code < 400
    if expected.is_per_recipient or (is_complete and len(answers) > 1):
        each = _each_after_dot(expected, answers, lost or Lost())
        is_mixed = len(set(each)) > 1
        return AnsweredPerRecipient(each, must_hang_up) if is_mixed else RefusedForAll(each[0], must_hang_up)
    if refusal is None or not (is_complete or refusal.is_temporary):
        return lost or Lost()
    return RefusedForAll(client_replies.passed_on(refusal), must_hang_up)


def _each_after_dot(expected: DotAnswers, answers: Sequence[Reply], lost: Lost) -> tuple[Reply, ...]:
    """What became of each recipient: refused at RCPT, answered after the dot, or left without an answer."""
    after_dot = [_for_client(reply) for reply in answers]
    after_dot += [lost.reply] * (expected.count - len(after_dot))
    remaining = iter(after_dot if expected.is_lmtp else after_dot * expected.recipients)
    return tuple(expected.refused.get(position) or next(remaining) for position in range(expected.recipients))


def _is_too_much(lost: Lost | None) -> bool:
    """Whether there are more answers than commands, even if only the start of the last one has come.

    Any of them may then be about another command or recipient. Doubt is a 4xx.
    """
    return lost is not None and lost.end is End.BROKEN


def _is_any_permanent(answers: Sequence[Reply]) -> bool:
    return any(reply.code >= 500 for reply in answers)


def _for_client(reply: Reply) -> Reply:
    return reply if reply.is_success else client_replies.passed_on(reply)
