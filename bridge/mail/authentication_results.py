"""Authentication-Results (RFC 8601): which of these fields claim to be ours, and how ours is written.

Readers trust such a field for the name at its beginning, the authserv-id. A field in an incoming mail that has our
name is forged and must be removed; fields of other servers must be kept (section 5). So the name is read as the
grammar defines it: after folding and comments, as a token or a quoted string, in any letter case, with or without a
version number; and also as it appears to readers that remove comments, quotes and white space before they look. A field
in which no name can be read (a comment or quoted string that does not end) counts as ours if it contains our name, and
so does one with an encoded word (RFC 2047) before the first semicolon, which is not allowed there: some readers decode
before they look. So do all fields after the first hundred that have more than a plain name before the results. The time
is linear. If this is wrong, senders can vouch for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from bridge.mail.address import comparable_domain
from bridge.mail.header_fields import FieldFinder

FIELD = "Authentication-Results"
FIELD_LOWER = FIELD.lower().encode("ascii")

# White space and control characters before the colon are not valid, but some readers may skip them.
_FIELDS = FieldFinder(rb"authentication-results[\x00-\x20\x7f]*+:")
_MARK = re.compile(rb'[(";]')
_MARK_IN_COMMENT = re.compile(rb"[()]|\\(?s:.)")
_QUOTED = re.compile(rb'"([^"\\]*(?:\\(?s:.)[^"\\]*)*)"')
_TOKEN = re.compile(rb'[^\x00-\x20\x7f()<>@,;:\\"/\[\]?=]++')  # RFC 2045 5.1, and UTF-8 (RFC 8601 section 5)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_SPACE = bytes(range(0x21)) + b"\x7f"
_AS_ONE_WORD = bytes.maketrans(_SPACE, b"*" * len(_SPACE))  # quoted text is one name, even with spaces
_NO_NAME = _SPACE + b"\"'\\<>(),*"  # what some reader may leave out of a name
_INVISIBLE = re.compile("[\\s\x80-\x9f\u200b-\u200f\u2060\ufeff\ufffd]+")
_MAX_MARKS = 20  # parentheses, quotes and escapes before the results
_MAX_ODD = 100  # fields of one mail; 30,000 short ones fit into a header section, and took a second to read
_PLAIN = re.compile(rb"[ \t\r\n]*+([A-Za-z0-9._-]++)[ \t\r\n]*+(?:;|\Z)")  # read at once; all others are odd

# RFC 8601 section 2.7, in the words of IANA's registry.
_RESULTS = {
    "spf": frozenset({"none", "pass", "fail", "softfail", "neutral", "policy", "temperror", "permerror"}),
    "dkim": frozenset({"none", "pass", "fail", "policy", "neutral", "temperror", "permerror"}),
    "dmarc": frozenset({"none", "pass", "fail", "temperror", "permerror"}),
}
_POLICIES = frozenset({"none", "quarantine", "reject"})
_TAG = re.compile(r"auth:(spf|dkim|dmarc)-([a-z]{1,10})")
_MAX_DOMAIN = 254  # characters
_MAX_NAME = 255  # characters; a longer name is not converted for the comparison
_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")


class OwnResults:
    """The fields of one authserv-id."""

    def __init__(self, authserv_id: str) -> None:
        self.authserv_id = authserv_id
        self._name = comparable_domain(authserv_id)
        self._bytes = self._name.encode("ascii")

    def is_own(self, value: bytes) -> bool:
        """Whether a field with this value, folded or not, has our name for some reader."""
        try:
            text, end = _before_results(value)
        except ValueError:
            return self._bytes in value.lower()
        if text is None or b"=?" in value[:end]:
            return True
        token = _TOKEN.match(text)
        names = {_joined(text), token[0] if token is not None else b""}
        return any(map(self._is_name, names))

    def _is_name(self, written: bytes) -> bool:
        if written.isascii():
            return written.lower().rstrip(b".") == self._bytes
        text = _INVISIBLE.sub("", written.decode("utf-8", "replace"))
        if text.isascii() or len(text) > _MAX_NAME:
            return text.lower().rstrip(".") == self._name
        return comparable_domain(text) == self._name

    def own_of(self, head: bytes, is_own: Callable[[bytes], bool] | None = None) -> Iterator[bool]:
        """For each Authentication-Results field of a header section, whether it is ours.

        `is_own`: from `reader`, if the header section comes in parts.
        """
        return map(is_own or self.reader(), _FIELDS.values(head))

    def remove(self, head: bytes) -> bytes:
        """The header section without ours; the same object if there are none."""
        return _FIELDS.remove(head, self.reader())

    def reader(self) -> Callable[[bytes], bool]:
        """`is_own` for the fields of one mail. Beyond a number that no honest mail reaches, odd ones count as ours."""
        numbers = count()

        def is_own(value: bytes) -> bool:
            plain = _PLAIN.match(value)
            return self._is_name(plain[1]) if plain is not None else next(numbers) >= _MAX_ODD or self.is_own(value)

        return is_own

    def value(self, tags: Iterable[str], sender_domain: str, helo: str) -> str:
        """Our own field, from the scanner's tags. `helo` stands for the sender of a bounce (RFC 7208 2.4)."""
        results = [_result(found[1], found[2], sender_domain, helo) for tag in tags if (found := _TAG.fullmatch(tag))]
        return "; ".join([self.authserv_id, *(sorted(filter(None, results), reverse=True) or ["none"])])


def _before_results(value: bytes) -> tuple[bytes | None, int]:
    """What precedes the first result, without comments and quotes, and where it ends; None if it is too odd.

    Raises ValueError if a comment or a quoted string does not end.
    """
    text, depth, position = b"", 0, 0
    for _ in range(_MAX_MARKS):
        found = (_MARK_IN_COMMENT if depth else _MARK).search(value, position)
        if found is None and depth:
            raise ValueError("a comment is not closed")
        text += b"" if depth else value[position : found.start() if found is not None else len(value)]
        if found is None or (found[0] == b";" and text.strip(_NO_NAME)):
            return text.lstrip(_NO_NAME), found.start() if found is not None else len(value)
        position = found.end()
        if found[0] == b'"':
            quoted = _QUOTED.match(value, found.start())
            if quoted is None:
                raise ValueError("a quoted string is not closed")
            text += _ESCAPED.sub(rb"\1", quoted[1]).strip(_SPACE).translate(_AS_ONE_WORD)
            position = quoted.end()
        elif found[0] in b"()":
            depth += 1 if found[0] == b"(" else -1
            text += b" "
    return None, position


def _joined(text: bytes) -> bytes:
    """The name for readers that remove comments, quotes and white space first; without the version number."""
    text = text.partition(b";")[0].rstrip(_SPACE)
    unversioned = text.rstrip(b"0123456789")
    if unversioned[-1:] in (b" ", b"\t", b"\n"):
        text = unversioned
    return text.translate(None, _NO_NAME)


def _result(method: str, result: str, sender_domain: str, helo: str) -> str:
    """One result; "" if the word is not in the registry. The tag of a mail that fails DMARC names the policy."""
    if method == "dmarc" and result in _POLICIES:
        return f"dmarc=fail (p={result})"
    if result not in _RESULTS[method]:
        return ""
    if method != "spf":
        return f"{method}={result}"
    identity, domain = ("smtp.mailfrom", sender_domain) if sender_domain else ("smtp.helo", helo)
    is_domain = len(domain) <= _MAX_DOMAIN and _DOMAIN.fullmatch(domain)  # all of it: the client chose it
    return f"spf={result} {identity}={domain}" if is_domain else f"spf={result}"
