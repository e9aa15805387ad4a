"""Inspection: everything that the bytes of a mail alone reveal.

Pure and synchronous, so that it can run in the event loop (small mail without archives) or in a
separate process (everything else). It trusts nothing and is bounded everywhere: if it reached a bound,
the result names it in `limits`, and the caller must treat the mail as not fully inspected.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from bridge.mime import ambiguity, encodings, readings
from bridge.mime import names as file_names
from bridge.mime.ambiguity import Buffer
from bridge.mime.structure import Bounds, Part, TooMuch, is_message, walk
from bridge.service.analysis import archives, file_types, headers, smime
from bridge.service.analysis.archives import BadArchive, Budget
from bridge.service.analysis.decompression import inflated
from bridge.service.analysis.links import Links, NeedsProcess
from bridge.service.analysis.openpgp import BEGIN as OPENPGP

# In two pieces, so that no virus scanner reports this file.
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-" + b"STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"

MAX_SENDERS = 20
WINDOW = 1024 * 1024  # bytes of text examined at a time; even, because of UTF-16 and UTF-32
NAME_COST = 1024  # work for each name of a file: an archive may give it thousands
BEGINNING = 4096  # bytes by which the type of a file is recognised
OVERLAP = 4096  # so that a link that starts in one window is complete in it


# Messages whose content is elsewhere: in other mails that the mail program puts together, or on a server.
_INCOMPLETE = {"message/partial": "mime:partial", "message/external-body": "mime:external-body"}

_ANY_TEXT = Part(0, 0, 0, content_type="text/html")


@dataclass(frozen=True, slots=True)
class Limits:
    """What to inspect and how far; plain data, because it is sent to another process."""

    bounds: Bounds = field(default_factory=Bounds)
    archive_depth: int = 4
    archive_members: int = 10_000
    extracted_bytes: int = 256 * 1024 * 1024
    urls: int = 5000
    look_at_mime: bool = True
    look_at_urls: bool = True
    look_at_headers: bool = True
    archives: bool = True  # False: raise NeedsProcess at the first archive, doubt, or links that take long
    keep_objects: bool = False  # True: objects that engines may not find themselves are part of the result

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Limits:
        return cls(**{**value, "bounds": Bounds(**value["bounds"])})


@dataclass(slots=True)
class Inspection:
    """The findings."""

    tags: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)  # SHA-256 of every attachment and every file in an archive
    senders: list[str] = field(default_factory=list)  # addresses in From and Sender
    objects: list[bytes] = field(default_factory=list)  # what engines may not find in the mail themselves

    def to_dict(self) -> dict[str, list[str]]:
        found = {name: list(getattr(self, name)) for name in ("tags", "limits", "hosts", "digests", "senders")}
        return found | {"objects": [base64.b64encode(content).decode() for content in self.objects]}

    @classmethod
    def from_dict(cls, value: dict[str, list[str]]) -> Inspection:
        tags, limits, hosts, digests = (set(value[name]) for name in ("tags", "limits", "hosts", "digests"))
        objects = [base64.b64decode(content) for content in value["objects"]]
        return cls(tags, limits, hosts, digests, list(value["senders"]), objects)


See = Callable[[bytes, Collection[str], bool], None]


def inspect(data: Buffer, limits: Limits, see: See | None = None) -> Inspection:
    """Inspect one mail. Raises NeedsProcess, but only if `limits.archives` is False.

    `see` is called with every object that a mail program may find in the mail, the names it may have, and whether
    it is in a container that engines may not open. It may raise TooMuch.
    """
    inspector = _MailInspector(limits, len(data), see)
    try:
        inspector.signatures(data)
        inspector.mail(data, 0)
    except TooMuch as exc:
        inspector.found.limits.add(str(exc))
    return inspector.finish()


class _MailInspector:
    """One inspection in progress; each method examines one kind of thing in the mail."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        self.limits = limits
        self.see = see
        self.opaque = 0  # containers around the current object that engines may not open
        self.found = Inspection()
        self.links = Links(limits.urls, is_inline=not limits.archives)
        self.reading = readings.Budget(size)
        self.budget = Budget(limits.archive_members, limits.extracted_bytes, limits.archive_depth)
        self.budget.work = max(self.budget.work, limits.extracted_bytes)

    def finish(self) -> Inspection:
        self.found.tags |= self.links.tags
        self.found.hosts = self.links.hosts
        return self.found

    def show(self, content: bytes, names: Collection[str]) -> None:
        if self.see:
            self.see(content, names, self.opaque > 0)

    def signatures(self, data: Buffer) -> None:
        if data.find(EICAR) >= 0:
            self.found.tags.add("malware:eicar")
        if data.find(GTUBE) >= 0:
            self.found.tags.add("spam:gtube")

    def mail(self, data: Buffer, nesting: int) -> None:
        outermost = nesting == 0
        doubts: set[str] = set()
        for part in walk(data, self.limits.bounds):
            if part.depth == 0 and outermost:
                self.header(part)
                outermost = False
            if part.content_type.startswith("multipart/"):
                self.named(part.names)
            else:
                self.leaf(data, part, nesting)
            doubts |= part.doubts
            if doubts and not self.limits.archives:
                raise NeedsProcess
        if doubts and self.limits.look_at_mime:
            self.readings(data, doubts, nesting)

    def readings(self, data: Buffer, doubts: set[str], nesting: int) -> None:
        """Programs may disagree on this mail: look at everything that any of them finds."""
        self.found.tags |= {f"mime:ambiguous:{reason}" for reason in doubts}
        whole = data[:]
        try:
            names = set().union(*map(file_names.everywhere, readings.texts(whole)))
        except file_names.TooManyNames:
            raise TooMuch("names") from None
        self.named(names)
        for text in (whole, *encodings.quoted_readings(whole)):
            self.text(text, 0, len(text), _ANY_TEXT)
        mails: list[bytes] = []
        for content, is_decoded in readings.objects(whole, self.reading):
            self.signatures(content)
            self.show(content, names)
            if is_decoded and readings.may_be_mail(content):
                mails.append(content)
            else:
                self.guess(content, is_decoded, nesting)
        self.enclosed_once(mails, nesting)

    def named(self, names: Collection[str]) -> None:
        """Names that a program may show, of a container or of no part in particular."""
        for name in names:
            self.found.tags |= file_types.tags_of(name, "", b"")

    def enclosed_once(self, mails: list[bytes], nesting: int) -> None:
        """Most of these are beginnings of each other: the same encoded message, read to different ends."""
        done: list[bytes] = []
        for content in sorted(mails, key=len, reverse=True):
            self.reading.take(sum(map(len, done)))
            if not any(content in other for other in done):
                done.append(content)
                self.enclosed(content, nesting)

    def hidden(self, content: bytes, nesting: int) -> None:
        """An encoded text in which some programs find parts or files."""
        doubts = ambiguity.in_text(b"\n" + content, 0, len(content) + 1)
        if doubts and not self.limits.archives:
            raise NeedsProcess
        if doubts:
            self.readings(content, doubts, nesting)

    def guess(self, content: bytes, is_decoded: bool, nesting: int) -> None:
        """An object that some program finds. Its name and type are in doubt, so only its bytes count."""
        if is_decoded and file_types.is_text(content):
            self.text(content, 0, len(content), _ANY_TEXT)
            if nesting < self.budget.depth:
                self.hidden(content, nesting + 1)
        if _is_file(content):
            self.found.tags |= file_types.tags_of("", "", content)
            self.file(content, (), nesting)

    def header(self, part: Part) -> None:
        if self.limits.look_at_headers:
            self.found.tags |= headers.check(part.fields)
        for value in part.values("from") + part.values("sender"):
            self.found.senders += headers.addresses(value)[:MAX_SENDERS]
            if len(self.found.senders) > 10 * MAX_SENDERS:
                raise TooMuch("senders")

    def leaf(self, data: Buffer, part: Part, nesting: int) -> None:
        if part.content_type in _INCOMPLETE:
            self.found.tags.add(_INCOMPLETE[part.content_type])
        plain = part.encoding in encodings.PLAIN
        if plain and is_message(part.content_type):
            self.named(part.names)
            return  # `walk` yields its parts next
        is_text = part.content_type in ("text/plain", "text/html") and not part.names
        if plain:
            part.doubts |= ambiguity.in_text(data, part.body, part.end)
        if plain and is_text and not _is_file(data[part.body : min(part.end, part.body + 512)]):
            # The search for signatures in the whole mail has covered its bytes.
            self.text(data, part.body, part.end, part)
            if self.see:
                self.show(data[part.body : part.end], part.names)
            return
        content, agreed = encodings.decode(data[part.body : part.end], part.encoding)
        if not agreed:
            part.doubts.add("content-encoding")
        self.show(content, part.names)
        if not plain:
            self.signatures(content)
        if self.limits.look_at_mime and not plain and file_types.is_text(content):
            self.hidden(content, nesting)
        if is_text:
            self.text(content, 0, len(content), part)
        if self.limits.look_at_mime and (not is_text or _is_file(content)):
            self.attachment(content, part, nesting)

    def text(self, content: Buffer, start: int, end: int, part: Part) -> None:
        """Search for links window by window, so that a long text is never copied as a whole."""
        charset, is_html = part.params.get("charset", ""), part.content_type == "text/html"
        while self.limits.look_at_urls and start < end:
            window = content[start : min(start + WINDOW + OVERLAP, end)]
            self.links.scan(_text(window, charset), is_html=is_html)
            if len(self.links.hosts) > self.limits.urls:
                raise TooMuch("urls")
            start += WINDOW

    def attachment(self, content: bytes, part: Part, nesting: int) -> None:
        self.names(part.names or {""}, part.content_type, content)
        if part.content_type == "text/html":
            self.text(content, 0, len(content), part)
        is_named = any(name.lower().endswith((".p7m", ".p7z")) for name in part.names)
        if is_named or "pkcs7-mime" in part.content_type or smime.looks_like_cms(content):
            self.signed(content, nesting)
        is_mail = is_message(part.content_type) or part.content_type == "application/mbox"
        if is_mail or any(map(_is_mail_name, part.names)) or (not part.names and readings.begins_like_mail(content)):
            self.enclosed(content, nesting)
        self.file(content, part.names, nesting)

    def names(self, names: Collection[str], content_type: str, content: bytes) -> None:
        """Whatever the names, the whole content is searched only once; types are told by its beginning."""
        self.budget.take_work(NAME_COST * len(names))
        for number, name in enumerate(names):
            self.found.tags |= file_types.tags_of(name, content_type, content if number == 0 else content[:BEGINNING])

    def signed(self, content: bytes, nesting: int) -> None:
        """S/MIME: mail programs show the message inside, no matter who signed it."""
        self.opaque += 1  # engines do not open it
        try:
            for inner in smime.contents(content, self.budget):
                if not self.limits.archives:
                    raise NeedsProcess
                for message in (inner, inflated(inner, self.budget)):
                    if message:
                        self.show(message, ())
                        self.signatures(message)
                        self.enclosed(message, nesting)
        except smime.BadStructure:
            self.found.tags.add("mime:broken-archive")
        finally:
            self.opaque -= 1

    def enclosed(self, content: bytes, nesting: int) -> None:
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        self.mail(content, nesting + 1)

    def file(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """A file, attached or unpacked."""
        self.found.digests.add(hashlib.sha256(content).hexdigest())
        for number, kind in enumerate(archives.kinds_of(content, names)):
            self.archive(content, kind, names, nesting, is_certain=number == 0 and kind != "lzma")

    def archive(self, content: bytes, kind: str, names: Collection[str], nesting: int, *, is_certain: bool) -> None:
        if kind not in archives.OPENABLE:
            self.found.tags.add("mime:unopened-archive")
            return
        if not self.limits.archives:
            raise NeedsProcess
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        try:
            for member in archives.members(content, kind, names, self.budget):
                self.member(member, kind, nesting)
        except BadArchive:
            if is_certain:
                self.found.tags.add("mime:broken-archive")

    def member(self, member: archives.Member, kind: str, nesting: int) -> None:
        content = member.content
        if member.limit:
            self.found.limits.add(member.limit)
        if member.encrypted:
            self.found.tags.add("mime:encrypted-archive")
            if any(file_types.named_family(name) == file_types.EXECUTABLE for name in member.names):
                self.found.tags.add("mime:executable")
            return
        if member.broken:
            self.found.tags.add("mime:broken-archive")
        self.names(member.names, "", content or b"")
        if any(map(file_types.is_macro_member, member.names)):
            self.found.tags.add("mime:macro")
        if content is None:
            return
        if archives.kind_of(content) and kind not in archives.COMPRESSORS:
            self.found.tags.add("mime:nested-archive")
        self.signatures(content)
        self.opaque += member.is_disputed
        if self.opaque:
            self.show(content, member.names)
        if any(map(_is_mail_name, member.names)) or (kind == "openpgp" and readings.begins_like_mail(content)):
            self.enclosed(content, nesting)
        elif kind == "openpgp" and file_types.is_text(content):
            self.text(content, 0, len(content), _ANY_TEXT)
        self.file(content, member.names, nesting + 1)
        self.opaque -= member.is_disputed


def _is_mail_name(name: str) -> bool:
    return name.lower().rstrip(". ").endswith((".eml", ".mbox", ".mbx", ".mht", ".mhtml", ".nws"))


def _is_file(content: bytes) -> bool:
    """Whether a text is no text: some programs save it as a file."""
    kind = archives.kind_of(content)
    if kind == "gzip":  # whose first two bytes alone could be an accident
        return content[2:3] == b"\x08"
    return bool(kind) or archives.has_zip_member(content) or file_types.is_program(content) or OPENPGP in content


def _text(content: bytes, charset: str) -> str:
    """The text, decoded well enough to find links: links are ASCII in all charsets except the UTF ones.

    Without its NULs, a text in UTF-16 or UTF-32 is ASCII too, so its label (`ucs-2`, `unicode`, none) does not matter.
    """
    name = charset.lower().replace("_", "-")
    if name.startswith(("utf-8", "utf-16", "utf-32", "utf-7")) or name.endswith(("utf-7", "utf7")):
        try:
            return content.decode("utf-7" if "7" in name else name[:10], "replace")
        except (LookupError, ValueError):
            pass
    return content.replace(b"\0", b"").decode("latin-1")
