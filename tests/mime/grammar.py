"""A grammar of malformed mail: every mail hides one payload, and knows its seed and what is wrong with it.

A mail is a choice in each of the SLOTS (how the boundary parameter is written, how a head ends, and so on). The
first choice of each slot is what an honest sender writes. One to four slots are mutated, so a finding names its
cause: the set of mutations. The same seed always gives the same mail. `shrink` removes what a finding does not need.
"""

from __future__ import annotations

import io
import string
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.mime.early_ends import LEAF_LINES, LEAVES, STOPS
from tests.mime.edits import edited
from tests.mime.encodings import ENCODERS, LINE_ENDS_MATTER, base64_plain, binhex, uuencoded, yenc_blocks
from tests.mime.mutations import (
    BODIES,
    BOUNDARIES,
    DECOY_FILE,
    DISPOSITIONS,
    ENCODING_VALUES,
    FIELDS,
    FILE,
    HEAD_ENDS,
    OTHER,
    PARAMS,
    PART_TYPES,
    TYPES,
    Lines,
    write_field,
    write_param,
)
from tests.mime.reader import EICAR

PAYLOAD_BYTES = 600


@dataclass(frozen=True)
class Case:
    """One mail. `recipe` has the mutated slots only."""

    seed: int
    recipe: tuple[tuple[str, str], ...]
    payload: bytes
    mail: bytes
    edits: tuple[str, ...] = ()

    @property
    def mutations(self) -> str:
        return " ".join(f"{slot}={choice}" for slot, choice in self.recipe) or "none"

    @property
    def cause(self) -> str:
        """The mutations without those that only vary what is hidden; random edits are named by what they did."""
        kept = (f"{slot}={choice}" for slot, choice in self.recipe if slot not in ("payload", "edit", "second-edit"))
        return " ".join((*kept, *self.edits)) or "none"


def generate(seed: int) -> Case:
    dice = Random(seed)
    recipe = {"payload": dice.choice(("binary", "binary", "text", "zip"))}
    for slot in dice.sample(sorted(SLOTS), dice.choice((1, 1, 2, 2, 3, 4))):
        recipe[slot] = dice.choice(SLOTS[slot])
    return build(seed, recipe)


def singles() -> Iterator[Case]:
    """Each mutation alone."""
    every = [(slot, choice) for slot, choices in SLOTS.items() for choice in choices if slot != "second-edit"]
    for number, (slot, choice) in enumerate(every):
        payload = tuple(PAYLOADS)[number % 3]
        yield build(number, {"payload": payload, slot: choice})


def files_in_lines() -> Iterator[Case]:
    """Files whose line breaks are those of the mail, and others in which a program may change line ends."""
    for seed in range(4):
        for encoding in LINE_ENDS_MATTER:
            for kind in ("octets", "text"):
                recipe = {"payload": ("zip", "binary")[seed % 2], "encoding": encoding, "part-type": kind}
                yield build(seed, recipe)


def with_line_ends(case: Case) -> list[Case]:
    """The mail, and the others that it becomes on the way."""
    forms = [build(case.seed, {**dict(case.recipe), "on-the-way": how}) for how in ON_THE_WAY[1:]]
    return list({form.mail: form for form in (*forms, case)}.values())


def build(seed: int, recipe: dict[str, str]) -> Case:
    mutated = {slot: choice for slot, choice in recipe.items() if choice != SLOTS[slot][0]}
    payload = PAYLOADS[recipe.get("payload", "binary")](Random(f"{seed} payload"))
    builder = Builder(seed, mutated, payload)
    mail = builder.mail()
    return Case(seed, tuple(sorted(mutated.items())), payload, mail, tuple(builder.edits))


def _binary(dice: Random) -> bytes:
    return b"\x7fBIN" + dice.randbytes(PAYLOAD_BYTES - 4)


def _text(dice: Random) -> bytes:
    return "".join(dice.choices(string.ascii_letters + string.digits, k=PAYLOAD_BYTES)).encode()


def _zip(dice: Random) -> bytes:
    """A zip file with EICAR in it, and noise so that no two are equal."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("noise.bin"), dice.randbytes(300))
        archive.writestr(zipfile.ZipInfo("eicar.com"), EICAR, zipfile.ZIP_DEFLATED)
    return file.getvalue()


PAYLOADS: dict[str, Callable[[Random], bytes]] = {"binary": _binary, "text": _text, "zip": _zip}

LAYOUTS = (
    *("multipart", "single", "nested", "nested-outer", "rfc822", "rfc822-single", "rfc822-base64", "rfc822-qp"),
    *("rfc822-no-blank", "global", "global-base64", "rfc822-attached-eml", "octets-eml", "multipart-base64"),
    *("multipart-qp", "inner-multipart-base64", "inner-multipart-qp", "digest", "partial-one", "partial-two"),
    *("external", "text-embedded", "second-head", "mail-in-preamble", "deep", "mbox", "bounce", "double-head"),
    *("appledouble", "appledouble-late", "external-file", "partial-both", "yenc-in-parts", "uu-in-parts"),
    *("base64-in-parts", "binhex-in-parts", "yenc-in-mails"),
)
EOLS = ("crlf", "lf", "cr", "mixed-crlf-lf", "mixed-all", "lfcr", "crcrlf", "head-lf", "body-lf", "head-crlf-body-cr")
OUTER = ("plain", "no-mime-version", "from-line", "space-first", "blank-first", "no-fields", "junk-first", "lower-case")
ENDS = ("plain", "truncated", "no-newline", "nul", "ctrl-z", "blank-lines", "dot")
# What the servers on the way make of the line ends: SMTP has CRLF, a file on Unix has LF.
ON_THE_WAY = ("unchanged", "crlf", "lf")
EDITS = ("none", *(str(number) for number in range(60)))

SLOTS: dict[str, tuple[str, ...]] = {
    "payload": tuple(PAYLOADS),
    "layout": LAYOUTS,
    "type-field": tuple(FIELDS),
    "type": tuple(TYPES),
    "types": ("once", "text-first", "text-last", "other-first", "other-last", "no-boundary-first", "no-boundary-last"),
    "boundary": tuple(BOUNDARIES),
    "param": tuple(PARAMS),
    "body": tuple(BODIES),
    "behind": ("none", *STOPS),
    "head-end": tuple(HEAD_ENDS),
    "outer-head-end": tuple(HEAD_ENDS),
    "part-type": tuple(PART_TYPES),
    "part-type-field": tuple(FIELDS),
    "encoding": tuple(ENCODERS),
    "encoding-value": tuple(ENCODING_VALUES),
    "encoding-field": tuple(FIELDS),
    "disposition": tuple(DISPOSITIONS),
    "order": ("type-first", "encoding-first", "disposition-first"),
    "outer": OUTER,
    "eol": EOLS,
    "end": ENDS,
    "on-the-way": ON_THE_WAY,
    "file-name": ("none", *PARAMS),
    "type-name": ("none", *PARAMS),
    "edit": EDITS,
    "second-edit": EDITS,
}


class Builder:
    """Puts one mail together from the choices of its recipe."""

    def __init__(self, seed: int, recipe: dict[str, str], payload: bytes) -> None:
        self.seed, self.recipe, self.payload = seed, recipe, payload
        self.edits: list[str] = []
        self.boundary = BOUNDARIES[self.choice("boundary")]
        if self.choice("behind") != "none":
            self.boundary = b"foo" + STOPS[self.choice("behind")] + self.boundary

    def choice(self, slot: str) -> str:
        return self.recipe.get(slot, SLOTS[slot][0])

    def dice(self, slot: str) -> Random:
        """Own dice for each slot, so that shrinking one slot does not change another."""
        return Random(f"{self.seed} {slot}")

    def mail(self) -> bytes:
        head, body = self.layout()
        outer = self.outer_fields()
        if self.choice("outer") == "lower-case":
            head = [
                line.lower() if line.lower().startswith(b"content-") and b"oundary" not in line else line
                for line in head
            ]
        lines = [*outer, *head, *HEAD_ENDS[self.choice("outer-head-end")].split(b"\n")]
        match self.choice("outer"):
            case "blank-first":
                lines = [b"", *lines]
            case "no-fields":
                lines = [*head, *lines[len(outer) + len(head) :]]
        return self.sent(self.edit(self.ended(self.joined(lines, body))))

    def sent(self, mail: bytes) -> bytes:
        match self.choice("on-the-way"):
            case "crlf":
                return mail.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
            case "lf":
                return mail.replace(b"\r\n", b"\n")
        return mail

    def outer_fields(self) -> Lines:
        fields = [
            b"From: a@example.com",
            b"To: b@example.net",
            b"Subject: x",
            b"Date: Mon, 16 Nov 2026 01:02:03 +0000",
            b"Message-ID: <1@example.com>",
            b"MIME-Version: 1.0",
        ]
        match self.choice("outer"):
            case "no-mime-version":
                return fields[:-1]
            case "from-line":
                return [b"From a@example.com Mon Nov 16 01:02:03 2026", *fields]
            case "space-first":
                return [b" x: y", *fields]
            case "junk-first":
                return [b"no field here", *fields]
        return fields

    # --- the part with the payload ---

    def part(self) -> Lines:
        head, encoded = self.part_head()
        return [*head, *HEAD_ENDS[self.choice("head-end")].split(b"\n"), *encoded]

    def part_head(self) -> tuple[Lines, Lines]:
        encoder, declared = ENCODERS[self.choice("encoding")]
        fields = {
            "type": self.part_type(),
            "encoding": self.encoding(declared),
            "disposition": self.disposition(),
        }
        first = self.choice("order").partition("-")[0]
        head = [line for name in sorted(fields, key=lambda name: name != first) for line in fields[name]]
        return head, encoder(self.payload, self.dice("encoding"))

    def part_type(self) -> Lines:
        first, *rest = PART_TYPES[self.choice("part-type")].split(b"\n")
        if not first:
            return []
        value = first.partition(b":")[2].strip()
        if self.choice("type-name") != "none":
            value = value.partition(b";")[0] + write_param(self.choice("type-name"), FILE, b"name", DECOY_FILE)
        return [*write_field(self.choice("part-type-field"), b"Content-Type", value), *rest]

    def disposition(self) -> Lines:
        value = DISPOSITIONS[self.choice("disposition")]
        if self.choice("file-name") != "none":
            value = b"Content-Disposition: attachment" + write_param(
                self.choice("file-name"), FILE, b"filename", DECOY_FILE
            )
        return _some(value.split(b"\n"))

    def encoding(self, declared: bytes) -> Lines:
        how = self.choice("encoding-value")
        if how == "missing":
            return []
        text = ENCODING_VALUES[how].replace(b"^", declared.upper()).replace(b"~", declared.title())
        value, *rest = text.replace(b"%", declared).split(b"\n")
        return [*write_field(self.choice("encoding-field"), b"Content-Transfer-Encoding", value), *rest]

    # --- containers ---

    def multipart(self) -> tuple[Lines, Lines]:
        """Head and body of the mutated multipart."""
        text: Lines = [b"Content-Type: text/plain", b"", b"hello"]
        part = self.part() if self.choice("behind") == "none" else self.behind_leaf()
        body: Lines = []
        for line in BODIES[self.choice("body")].replace(b"%", self.boundary).split(b"\n"):
            for mark, lines in ((b"1", text), (b"2", part)):
                if line[:1] == mark and (len(line) == 1 or line[1:2] == b"\r"):
                    body += lines
                    if line[1:]:
                        body[-1] += line[1:]
                    break
            else:
                body.append(line.replace(b"O", OTHER) if line.startswith(b"--O") else line)
        return self.type_fields(), body

    def behind_leaf(self) -> Lines:
        """The part after the delimiter that readers see who end the boundary early; to others, it is in a leaf."""
        kind, encoding = self.dice("behind").choice(LEAVES)
        leaf = [b"Content-Type: " + kind, b"Content-Transfer-Encoding: " + encoding, b""]
        lines = [LEAF_LINES.get(encoding, b"hello")] * 5
        return [*leaf, *lines, b"--foo", *self.part(), b"--foo--"]

    def type_fields(self) -> Lines:
        kind = TYPES[self.choice("type")].replace(b"%", b"multipart/mixed")
        how = self.recipe.get("param", "quoted" if self.choice("behind") == "none" else "bare")
        value = kind + write_param(how, self.boundary)
        good = write_field(self.choice("type-field"), b"Content-Type", value)
        match self.choice("types"):
            case "text-first":
                return [b"Content-Type: text/plain", *good]
            case "text-last":
                return [*good, b"Content-Type: text/plain"]
            case "other-first":
                return [b"Content-Type: multipart/mixed; boundary=decoy", *good]
            case "other-last":
                return [*good, b"Content-Type: multipart/mixed; boundary=decoy"]
            case "no-boundary-first":
                return [b"Content-Type: multipart/mixed", *good]
            case "no-boundary-last":
                return [*good, b"Content-Type: multipart/mixed"]
        return good

    def inner_mail(self, *, single: bool = False) -> Lines:
        head, body = self.part_head() if single else self.multipart()
        return [b"From: c@example.com", b"Subject: inner", b"MIME-Version: 1.0", *head, b"", *body]

    def layout(self) -> tuple[Lines, Lines]:
        how = self.choice("layout")
        match how:
            case "multipart":
                return self.multipart()
            case "single":
                return self.part_head()
            case "text-embedded":
                return [b"Content-Type: text/plain"], [b"Hello,", b"", *self.part_head()[1], b"", b"bye"]
            case "digest":
                head = [b"Content-Type: multipart/digest; boundary=out"]
                return head, [b"", b"--out", b"", *self.inner_mail(), b"--out--", b""]
            case "external":
                head = [b'Content-Type: message/external-body; access-type=anon-ftp; site=x; name="y"']
                return around("out", [*head, b"", *self.part()])
            case "partial-one" | "partial-two":
                total = b"1" if how == "partial-one" else b"2"
                return [b'Content-Type: message/partial; id="x@y"; number=1; total=' + total], self.inner_mail()
            case "nested" | "nested-outer" | "deep" | "double-head":
                return self.nested(how)
            case "appledouble" | "appledouble-late":
                return self.appledouble(is_late=how.endswith("late"))
            case "external-file":
                head = [b'Content-Type: message/external-body; access-type=local-file; name="/tmp/x"', b""]
                return around("out", [*head, b"Content-ID: <1@x>", *self.part()])
            case "partial-both" | "yenc-in-mails":
                return self.divided(how)
            case _ if how.endswith("-in-parts"):
                return self.divided(how)
            case "mbox" | "second-head" | "mail-in-preamble" | "bounce":
                return self.stray(how)
        return self.recoded_multipart(how) if "multipart" in how else self.enclosed(how)

    def nested(self, how: str) -> tuple[Lines, Lines]:
        """The mutated multipart in others."""
        head, body = self.multipart()
        if how == "double-head":
            return [], [*head, b"", *body]
        names = {"nested": ["out"], "nested-outer": ["b0undary-2"]}.get(how, [f"level{level}" for level in range(12)])
        for name in names:
            head, body = around(name, [*head, b"", *body])
        return head, body

    def appledouble(self, *, is_late: bool) -> tuple[Lines, Lines]:
        """A file of a Mac: its resources, then its content; or the other way round."""
        fork = [b"Content-Type: application/applefile; name=file.bin", b"Content-Transfer-Encoding: base64", b""]
        fork += base64_plain(b"\0\x05\x16\x07\0\x02\0\0" + bytes(18), self.dice("layout"))
        parts = [self.part(), fork] if is_late else [fork, self.part()]
        lines = [line for part in parts for line in (b"--in", *part)]
        return around("out", [b"Content-Type: multipart/appledouble; boundary=in", b"", *lines, b"--in--"])

    def divided(self, how: str) -> tuple[Lines, Lines]:
        """The payload in two parts, or in two mails."""
        dice = self.dice("layout")
        if how == "partial-both":
            mail = self.inner_mail()
            halves = [mail[: len(mail) // 2], mail[len(mail) // 2 :]]
        elif how.startswith("yenc"):
            halves = [lines for _, lines in yenc_blocks(self.payload, dice)]
        else:
            encoder = {"uu-in-parts": uuencoded, "binhex-in-parts": binhex}.get(how, base64_plain)
            lines = encoder(self.payload, dice)
            halves = [lines[: len(lines) // 2], lines[len(lines) // 2 :]]
        body: Lines = []
        for number, half in enumerate(halves, 1):
            head = [b"Content-Type: text/plain"]
            if how == "partial-both":
                head = [b'Content-Type: message/partial; id="x@y"; number=%d; total=2' % number]
            if how == "yenc-in-mails":
                subject = b'Subject: "file.bin" yEnc (%d/%d)' % (number, len(halves))
                head = [b"Content-Type: message/rfc822", b"", b"From: c@example.com", subject]
            body += [b"--in", *head, b"", *half]
        return [b"Content-Type: multipart/mixed; boundary=in"], [*body, b"--in--", b""]

    def stray(self, how: str) -> tuple[Lines, Lines]:
        """A mail where a text should be."""
        text, mail = [b"Content-Type: text/plain"], self.inner_mail()
        if how == "mbox":
            return [b"Content-Type: application/mbox"], [b"From x Mon Nov 16 01:02:03 2026", *mail, b""]
        if how == "mail-in-preamble":
            return [b"Content-Type: multipart/mixed; boundary=out"], [*mail, b"--out", b"", b"x", b"--out--"]
        if how == "bounce":
            return [], [b"Not delivered.", b"", b"--- Below this line is a copy of the message.", b"", *mail]
        return text, mail

    def recoded_multipart(self, how: str) -> tuple[Lines, Lines]:
        """A container with a transfer encoding, which RFC 2045 forbids."""
        head, body = self.multipart()
        name, lines = self.recoded(how.rpartition("-")[2], body)
        head = [*head, b"Content-Transfer-Encoding: " + name]
        return around("out", [*head, b"", *lines]) if how.startswith("inner") else (head, lines)

    def enclosed(self, how: str) -> tuple[Lines, Lines]:
        """A mail in a mail."""
        kind, extra, lines = b"message/rfc822", [], self.inner_mail(single=how == "rfc822-single")
        if how.startswith("global"):
            kind = b"message/global"
        if how == "octets-eml":
            kind, extra = b"application/octet-stream", [b"Content-Disposition: attachment; filename=x.eml"]
        if how == "rfc822-attached-eml":
            extra = [b"Content-Disposition: attachment; filename=x.eml"]
        recoding = "qp" if how.endswith("-qp") else "base64" if how.endswith(("base64", "octets-eml")) else ""
        if recoding:
            name, lines = self.recoded(recoding, lines)
            extra.append(b"Content-Transfer-Encoding: " + name)
        blank = [] if how == "rfc822-no-blank" else [b""]
        return around("out", [b"Content-Type: " + kind, *extra, *blank, *lines])

    def recoded(self, how: str, lines: Lines) -> tuple[bytes, Lines]:
        encoder, name = ENCODERS["base64" if how == "base64" else "qp-all"]
        return name, encoder(self.joined([], lines), self.dice("recoded"))

    # --- lines ---

    def joined(self, head: Lines, body: Lines) -> bytes:
        eol, dice = self.choice("eol"), self.dice("eol")
        ends = {"crlf": b"\r\n", "lf": b"\n", "cr": b"\r", "lfcr": b"\n\r", "crcrlf": b"\r\r\n"}
        if eol in ends:
            return ends[eol].join([*head, *body])
        if eol.startswith("mixed"):
            choices = (b"\r\n", b"\n") if eol == "mixed-crlf-lf" else (b"\r\n", b"\n", b"\r")
            return b"".join(line + dice.choice(choices) for line in [*head, *body])
        first = b"\n" if eol == "head-lf" else b"\r\n"
        second = {"head-lf": b"\r\n", "body-lf": b"\n"}.get(eol, b"\r")
        return b"".join(line + first for line in head) + second.join(body)

    def ended(self, mail: bytes) -> bytes:
        match self.choice("end"):
            case "truncated":
                return mail[: -self.dice("end").choice((1, 2, 5, 12, 20, 60))]
            case "no-newline":
                return mail.rstrip(b"\r\n")
            case "nul":
                return mail + b"\0"
            case "ctrl-z":
                return mail + b"\x1a"
            case "blank-lines":
                return mail + b"\r\n" * 50
            case "dot":
                return mail + b"\r\n.\r\n"
        return mail

    def edit(self, mail: bytes) -> bytes:
        """Small random edits, mostly outside of the long lines of the payload."""
        for slot in ("edit", "second-edit"):
            if self.choice(slot) != "none":
                mail, what = edited(mail, Random(f"{self.seed} {slot} {self.choice(slot)}"))
                self.edits.append(what)
        return mail


def around(boundary: str, part: Lines) -> tuple[Lines, Lines]:
    """An honest multipart around a part."""
    mark = b"--" + boundary.encode()
    head = [b'Content-Type: multipart/mixed; boundary="' + boundary.encode() + b'"']
    return head, [b"", mark, b"Content-Type: text/plain", b"", b"hello", mark, *part, mark + b"--", b""]


def _some(lines: Lines) -> Lines:
    return [line for line in lines if line]


# --- shrinking -----------------------------------------------------------------------------------

Fails = Callable[[Case], bool]


def simplest(case: Case, fails: Fails) -> Case:
    """The same finding with as few mutations as possible."""
    recipe = dict(case.recipe)
    for slot in sorted(recipe):
        fewer = build(case.seed, {name: choice for name, choice in recipe.items() if name != slot})
        if fails(fewer):
            del recipe[slot]
    return build(case.seed, recipe)


def shrink(case: Case, fails: Fails, attempts: int = 400) -> Case:
    """The same finding with as few mutations and lines as possible."""
    case = simplest(case, fails)
    for shorter in _until_none(case, fails, attempts):
        case = shorter
    return case


def _until_none(case: Case, fails: Fails, attempts: int) -> Iterator[Case]:
    size = max(1, len(case.mail.split(b"\n")) // 2)
    while size and attempts > 0:
        lines = case.mail.split(b"\n")
        for start in range(0, len(lines), size):
            attempts -= 1
            shorter = replace(case, mail=b"\n".join(lines[:start] + lines[start + size :]))
            if attempts > 0 and fails(shorter):
                case = shorter
                yield case
                break
        else:
            size //= 2
