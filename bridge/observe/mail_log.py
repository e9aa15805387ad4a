"""The mail log: one line per mail, with our id first.

The table `_FIELDS` lists every field in reading order. Two things are made from it: the line of any mail
(`_fields`), and at import a format for ordinary mail, which is nearly all mail (`_ordinary_line`). A test
compares the two for random mails. How values are quoted is decided in `log_format`, how addresses are
shown in `redaction`. If this is wrong, an operator cannot find a mail, or reads an address that was to be hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from operator import attrgetter
from typing import Any

from bridge.filter.outcome import Record
from bridge.mail.envelope import Recipient
from bridge.mail.list_match import ListMatch
from bridge.mail.reply import Reply
from bridge.observe.log_format import MAX_VALUE, PLAIN, as_json, escaped, key_value
from bridge.observe.metrics import reason_of
from bridge.observe.redaction import FULL, Redaction

MAX_RECIPIENTS = 20  # named in one line; `nrcpt` has the number


class MailLog:
    """Gives each line directly to the writer: going through `logging` would double its cost."""

    def __init__(self, put: Callable[[str], None], as_json: bool = False, redaction: Redaction = FULL) -> None:
        self._put = put
        self._as_json = as_json
        self._redaction = redaction
        self._may_be_ordinary = not as_json and redaction is FULL

    def decided(self, record: Record) -> None:
        """Log what was done with this mail."""
        line = _ordinary_line(record) if self._may_be_ordinary else None
        self._put(line or self._any_line(record))

    def _any_line(self, record: Record) -> str:
        fields = _fields(record, self._redaction)
        return as_json(fields) if self._as_json else key_value(fields, _NEVER_QUOTED)


# --- The table -------------------------------------------------------------------------------------------------------


class _Kind(Enum):
    """Where the value comes from, which decides how it is quoted."""

    OURS = auto()  # made by us and always plain: never quoted
    WORD = auto()  # from outside, usually one plain word
    TEXT = auto()  # from outside, with spaces: always quoted


class _Ordinary(Enum):
    """Which ordinary mails have the field."""

    EVERY = auto()
    SOME = auto()  # follows a field that is OURS: after a word from outside, that word could imitate it
    NO = auto()  # a mail that has it is not ordinary


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of the line. None is left out."""

    name: str
    source: str  # a path of attributes, starting at the Record; None if what precedes a `?` is None
    kind: _Kind = _Kind.OURS
    ordinary: _Ordinary = _Ordinary.NO
    absent: Any = None  # this value is left out, too
    otherwise: Any = None  # shown instead of what is absent
    derive: Callable[[Record], Any] | None = None  # the value, where `source` alone is not enough
    redact: Callable[[Redaction, Any], Any] | None = None  # hides the addresses in the value
    show: Callable[[Any], Any] | None = None  # converts the value to what the line shows


def _joined_tags(tags: tuple[str, ...]) -> str:
    return ",".join(tags)


def _milliseconds(seconds: float) -> float:
    return int(seconds * 10_000 + 0.5) / 10  # half the time of round(seconds * 1000, 1)


def _in_brackets(address: str) -> str:
    return f"<{address}>"


def _addresses(recipients: tuple[Recipient, ...]) -> str:
    if len(recipients) == 1:
        return f"<{recipients[0].address}>"
    shown = ",".join([f"<{recipient.address}>" for recipient in recipients[:MAX_RECIPIENTS]])
    return shown if len(recipients) <= MAX_RECIPIENTS else f"{shown},..."


def _accepted(replies: tuple[Reply, ...]) -> int | None:
    """How many recipients have the mail, if some do and some do not."""
    accepted = sum(reply.is_success for reply in replies)
    return accepted if 0 < accepted < len(replies) else None


def _refusals(record: Record) -> list[tuple[str, str]] | None:
    """Which recipients were refused, and how, unless all replies are the same."""
    if record.outcome is None or len(set(record.outcome.replies)) < 2:
        return None
    pairs = zip(record.tx.envelope.addresses, record.outcome.replies, strict=True)
    return [(address, str(reply)) for address, reply in pairs if not reply.is_success] or None


def _joined(refusals: list[tuple[str, str]]) -> str:
    return "; ".join([f"<{address}> {reply}" for address, reply in refusals[:MAX_RECIPIENTS]])


def _redact_recipients(redaction: Redaction, recipients: tuple[Recipient, ...]) -> tuple[Recipient, ...]:
    """Those that the line names, and one more, which shows that there are others."""
    return tuple(Recipient(redaction.address(recipient.address)) for recipient in recipients[: MAX_RECIPIENTS + 1])


def _redact_entry(redaction: Redaction, listed: ListMatch) -> ListMatch:
    return replace(listed, entry=redaction.text(listed.entry))


def _redact_words(redaction: Redaction, value: object) -> str:
    """Of a reply or an error: a next hop's own words often name the recipient."""
    return redaction.text(str(value))


def _redact_tags(redaction: Redaction, tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(redaction.text, tags))


def _redact_refusals(redaction: Redaction, refusals: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(redaction.address(address), redaction.text(reply)) for address, reply in refusals[:MAX_RECIPIENTS]]


_OURS, _WORD, _TEXT = _Kind
_EVERY, _SOME, _NO = _Ordinary

_FIELDS = (  # in reading order
    _Field("id", "tx.id", _OURS, _EVERY),
    _Field("session", "tx.session.id", _OURS, _EVERY),
    _Field("listener", "tx.session.listener", _OURS, _EVERY),
    _Field("client", "tx.session.client.address", _WORD, _EVERY),
    _Field("helo", "tx.session.client.helo", _WORD, _EVERY, redact=Redaction.text),
    _Field("from", "tx.envelope.sender", _WORD, _EVERY, show=_in_brackets, redact=Redaction.address),
    _Field("to", "tx.envelope.recipients", _WORD, _EVERY, show=_addresses, redact=_redact_recipients),
    _Field("nrcpt", "tx.envelope.recipients", _OURS, _EVERY, show=len),
    _Field("size", "size", _OURS, _EVERY),
    _Field("message_id", "message_id", _WORD, _EVERY, absent="", redact=Redaction.message_id),
    _Field("tenant", "tenant"),
    _Field("decision", "outcome?.result?.decision", _OURS, _EVERY),
    _Field("verdict", "outcome?.result?.verdict", _WORD, _EVERY, absent="", redact=Redaction.text),
    _Field("rule", "rule", _WORD, _EVERY, absent=""),
    _Field("action", "outcome?.action", _OURS, _EVERY, otherwise="cancelled"),
    _Field("tags", "outcome?.result?.tags", _WORD, _SOME, absent=(), show=_joined_tags, redact=_redact_tags),
    _Field("unscanned", "unscanned", _OURS, absent=""),
    _Field("would", "would"),
    _Field("at", "at", absent=""),
    _Field("list", "listed", _WORD, show=attrgetter("name")),
    _Field("entry", "listed", _WORD, show=attrgetter("entry"), redact=_redact_entry),
    _Field("late", "late"),
    _Field("reply", "outcome?.reply", _TEXT, _EVERY, show=str, redact=_redact_words),
    _Field("accepted", "outcome?.replies", absent=(), show=_accepted),
    _Field("refused", "outcome?.replies", _TEXT, absent=(), derive=_refusals, show=_joined, redact=_redact_refusals),
    _Field("ggrid", "outcome?.result?.ggrid", _WORD, _EVERY, absent="", redact=Redaction.text),
    _Field("wait_ms", "wait_s", _OURS, _EVERY, show=_milliseconds),
    _Field("scan_ms", "scan_s", _OURS, _EVERY, show=_milliseconds),
    _Field("relay_ms", "relay_s", _OURS, _EVERY, show=_milliseconds),
    _Field("next_id", "next_id", _WORD, _SOME, absent="", redact=Redaction.text),
    _Field("trace_id", "trace", show=attrgetter("trace_id")),
    _Field("ident", "tx.session.client.ident", _WORD, _SOME, redact=Redaction.text),
    _Field("login", "tx.session.client.login", _WORD, redact=Redaction.address),
    _Field("tls", "tx.session.tls"),
    _Field("error", "error", show=reason_of),
    _Field("why", "why", _TEXT, absent="", redact=_redact_words),
)


# --- The line of any mail --------------------------------------------------------------------------------------------

_NEVER_QUOTED = frozenset(field.name for field in _FIELDS if field.kind is _OURS)


def _fields(record: Record, redaction: Redaction = FULL) -> dict[str, Any]:
    """What the line shows, in reading order."""
    if redaction is not FULL:
        redaction = redaction.of_mail(record.tx.envelope.sender, record.tx.envelope.addresses)
    shown = {}
    for field, value in zip(_FIELDS, _values(record), strict=True):
        if value is None or value == field.absent:
            value = field.otherwise
        elif field.derive or field.redact or field.show:
            value = _converted(field, value, record, redaction)
        if value is not None:
            shown[field.name] = value
    return shown


def _converted(field: _Field, value: Any, record: Record, redaction: Redaction) -> Any:
    if field.derive is not None and (value := field.derive(record)) is None:
        return None
    if field.redact is not None and redaction is not FULL:
        value = field.redact(redaction, value)
    return value if field.show is None else field.show(value)


def _values(record: Record) -> tuple[Any, ...]:
    if record.outcome is not None and record.outcome.result is not None:
        return _read_all(record)
    return tuple(_follow(record, field.source) for field in _FIELDS)


def _follow(record: Record, path: str) -> Any:
    value: Any = record
    for attributes in path.split("?."):
        value = None if value is None else attrgetter(attributes)(value)
    return value


def _reader(paths: Iterable[str]) -> Callable[[Record], tuple[Any, ...]]:
    """Reads these attributes of a mail that has an outcome with a result."""
    return attrgetter(*[path.replace("?", "") for path in paths])


_read_all = _reader(field.source for field in _FIELDS)


# --- The line of an ordinary mail ------------------------------------------------------------------------------------
# Nearly all mail is ordinary. Its line takes about 6 us instead of 11 (Python 3.11).


def _ordinary_line(record: Record) -> str | None:
    """What `key_value` makes of `_fields`; None if anything about the mail is out of the ordinary."""
    outcome = record.outcome
    if outcome is None or outcome.result is None or _read_special(record) != _NOTHING_SPECIAL:
        return None
    line = _format_ordinary(record)
    return line if len(line) <= MAX_VALUE and _is_ordinary(line) else None


def _all_of(*ordinary: _Ordinary) -> tuple[_Field, ...]:
    return tuple(field for field in _FIELDS if field.ordinary in ordinary)


def _formatter(fields: tuple[_Field, ...]) -> Callable[[Record], str]:
    """Makes the line from these fields of a record, with one template."""
    read = _reader(field.source for field in fields)
    parts = ["%s" if field.ordinary is _SOME else f" {field.name}=%s" for field in fields]
    template = "".join(parts).strip()
    conversions = [(n, convert) for n, field in enumerate(fields) if (convert := _conversion(field)) is not None]

    def line(record: Record) -> str:
        values = list(read(record))
        for position, convert in conversions:
            values[position] = convert(values[position])
        return template % tuple(values)

    return line


def _conversion(field: _Field) -> Callable[[Any], Any] | None:
    """Converts the value to its text in the line; None if no conversion is needed."""
    if field.ordinary is _SOME:
        show = field.show or str
        return lambda value: "" if value == field.absent else f" {field.name}={show(value)}"
    if field.kind is _TEXT:
        return lambda value: escaped(str(value))
    return field.show


def _pattern(field: _Field) -> str:
    """What an ordinary value looks like in the line. None was formatted as any word: it is not ordinary."""
    if field.ordinary is _SOME:
        return f"(?: {field.name}={PLAIN}+)?"
    shape = {_OURS: "[^ ]++", _WORD: f"(?!None ){PLAIN}+", _TEXT: r'"[^"]*+(?:(?<=\\)"[^"]*+)*"'}[field.kind]
    return f" {field.name}={shape}"


_USUAL = _all_of(_EVERY, _SOME)
_format_ordinary = _formatter(_USUAL)
_is_ordinary = re.compile("".join(map(_pattern, _USUAL)).strip()).fullmatch

_SPECIAL = {field.source: field.absent for field in _all_of(_NO)}
_NOTHING_SPECIAL = tuple(_SPECIAL.values())
_read_special = _reader(_SPECIAL)
