"""A grammar of malformed mail: every mail hides one payload, and knows its seed and what is wrong with it.

A mail is a choice in each of the SLOTS (how the boundary parameter is written, how a head ends, and so on). The
first choice of each slot is what an honest sender writes. One to four slots are mutated, so a finding names its
cause: the set of mutations. The same seed always gives the same mail. `shrink` removes what a finding does not need.
"""

from __future__ import annotations

import base64
import io
import re
import string
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.mime.encodings import ENCODERS
from tests.mime.readers import EICAR

Lines = list[bytes]
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
    every = [(slot, choice) for slot, choices in SLOTS.items() for choice in choices]
    for number, (slot, choice) in enumerate(every):
        payload = tuple(PAYLOADS)[number % 3]
        yield build(number, {"payload": payload, slot: choice})


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

# --- how a field is written ----------------------------------------------------------------------

FIELDS: dict[str, bytes] = {  # @ is the name, % the value
    "plain": b"@: %",
    "no-space": b"@:%",
    "space-before-colon": b"@ : %",
    "tab-before-colon": b"@\t: %",
    "fold-after-colon": b"@:\n %",
    "fold-tab": b"@:\n\t%",
    "fold-before-colon": b"@\n : %",
    "two-colons": b"@:: %",
    "no-colon": b"@ %",
    "equals": b"@= %",
    "cr-after-colon": b"@:\r %",
    "cr-before": b"X-A: b\r@: %",
    "vt-before": b"\x0b@: %",
    "space-before": b" @: %",
    "space-before-after-field": b"X-A: b\n @: %",
    "nul-before": b"\0@: %",
    "nul-after": b"@: %\0",
    "nul-in-name": b"@\0: %",
    "bom-before": b"\xef\xbb\xbf@: %",
    "latin1-before": b"\xe9@: %",
    "latin1-field-before": b"X-\xe9: y\n@: %",
    "junk-line-before": b"this is no field\n@: %",
    "junk-line-and-space": b"this is no field\n @: %",
    "colon-line-before": b": x\n@: %",
    "empty-name-fold": b"X-A:\n \n@: %",
    "space-line-before": b"X-A: b\n \n@: %",
    "tab-line-before": b"X-A: b\n\t\n@: %",
    "vt-line-before": b"X-A: b\n\x0b\n@: %",
    "from-line-before": b"From x@example.com Sat Jan  1 00:00:00 2000\n@: %",
    "from-quoted-before": b">From x@example.com\n@: %",
    "many-spaces": b"@:" + b" " * 2100 + b"%",
    "many-folds": b"@:" + b"\n " * 30 + b"%",
    "many-fields-before": b"X-A: b\n" * 80 + b"@: %",
    "trailing-space": b"@: %   ",
    "trailing-fold": b"@: %\n ",
    "semicolon-first": b"@: ; %",
    "quoted-value": b'@: "%"',
    "comment-first": b"@: (c) %",
    "comment-last": b"@: % (c)",
    "open-comment-first": b"@: (c %",
    "encoded-value": b"@: =?utf-8?q?%?=",
    "unicode-space": b"@:\xc2\xa0%",
    "form-feed": b"@:\x0c%",
    "lower-case": b"@: %",
    "upper-case": b"@: %",
    "dot-in-name": b"@.: %",
    "twice-in-line": b"@: @: %",
}


def write_field(how: str, name: bytes, value: bytes) -> Lines:
    if how == "lower-case":
        name = name.lower()
    if how == "upper-case":
        name, value = name.upper(), value
    return FIELDS[how].replace(b"@", name).replace(b"%", value).split(b"\n")


# --- how a type and its boundary are written -----------------------------------------------------

TYPES: dict[str, bytes] = {  # of the container; % is the type, e.g. multipart/mixed
    "plain": b"%",
    "upper-case": b"MULTIPART/MIXED",
    "no-slash": b"multipart",
    "no-subtype": b"multipart/",
    "space-slash": b"multipart / mixed",
    "comment-before": b"(c)%",
    "comment-space-before": b"(c) %",
    "comment-after": b"% (c)",
    "comment-inside": b"multi(c)part/mixed",
    "comment-at-slash": b"multipart(c)/mixed",
    "open-comment": b"% (c",
    "quoted": b'"%"',
    "quote-inside": b'multi"part/mixed',
    "encoded": b"=?us-ascii?Q?multipart/mixed?=",
    "x-multipart": b"x-multipart/mixed",
    "ultipart": b"ultipart/mixed",
    "comma": b"%, text/plain",
    "comma-first": b"text/plain, %",
    "second-slash": b"multipart/mixed/x",
    "backslash": b"multi\\part/mixed",
    "space-inside": b"multi part/mixed",
    "tab-after": b"%\t",
    "dot": b"%.",
    "nul": b"multipart/mixed\0",
    "nul-inside": b"multi\0part/mixed",
    "latin1": b"multipart/mix\xe9d",
    "fold-inside": b"multipart/\n mixed",
    "fold-at-slash": b"multipart\n /mixed",
    "text": b"text/plain",
    "octets": b"application/octet-stream",
    "message": b"message/rfc822",
    "empty": b"",
    "semicolon": b";",
    "related": b"multipart/related",
    "alternative": b"multipart/alternative",
    "digest": b"multipart/digest",
    "form-data": b"multipart/form-data",
    "report": b"multipart/report",
    "signed": b"multipart/signed",
    "encrypted": b"multipart/encrypted",
    "parallel": b"multipart/parallel",
    "appledouble": b"multipart/appledouble",
    "x-unknown": b"multipart/x-unknown",
}

# The delimiter without dashes; OTHER is a second one that readers may confuse with it.
BOUNDARIES: dict[str, bytes] = {
    "plain": b"b0undary",
    "space-inside": b"b0 undary",
    "two-spaces": b"b0  undary",
    "space-after": b"b0undary ",
    "space-before": b" b0undary",
    "tab-inside": b"b0\tundary",
    "odd": b"b0'()+_,-./:=?undary",
    "dashes": b"b0undary--",
    "dashes-before": b"--b0undary",
    "only-dashes": b"----",
    "one-char": b"b",
    "empty": b"",
    "space": b" ",
    "semicolon": b"b0;undary",
    "equals": b"b0=undary",
    "single-quotes": b"'b0undary'",
    "quote": b'b0"undary',
    "backslash": b"b0\\undary",
    "percent": b"b0%41undary",
    "parenthesis": b"b0(undary",
    "comment": b"b0(c)undary",
    "comma": b"b0,undary",
    "slash": b"b0/undary",
    "latin1": b"b0\xe9undary",
    "utf8": b"b0\xc3\xa9undary",
    "nul": b"b0\0undary",
    "upper-case": b"B0UNDARY",
    "prefix-of-other": b"b0",
    "other-is-prefix": b"b0undary-2",
    "long": b"b0undary" * 9,
    "very-long": b"b0undary" * 30,
    "base64-like": b"QUJDREVG",
    "encoded-word": b"=?utf-8?q?b0undary?=",
    "at": b"<b0undary@example.com>",
}
OTHER = b"b0undary"
DECOY = b"decoy"
FILE, DECOY_FILE = b"file.exe", b"decoy.png"  # what a mutated file name hides, and what it shows

# How the parameter is written: % is the value, * the decoy, ~ the first half of the value, ^ the second; $ is the value
# percent-encoded, # the same in UTF-16, ! in base64. For file names, `boundary` is replaced with `filename` or `name`.
PARAMS: dict[str, bytes] = {
    "quoted": b'; boundary="%"',
    "bare": b"; boundary=%",
    "single-quoted": b"; boundary='%'",
    "upper-case": b'; BOUNDARY="%"',
    "no-space": b';boundary="%"',
    "fold": b';\n boundary="%"',
    "fold-tab": b';\n\tboundary="%"',
    "fold-cr": b';\r boundary="%"',
    "fold-in-name": b'; boun\n dary="%"',
    "fold-at-equals": b'; boundary=\n "%"',
    "fold-in-value": b'; boundary="~\n ^"',
    "fold-before-semicolon": b'\n ; boundary="%"',
    "fold-empty": b';\n \n boundary="%"',
    "not-folded": b';\nboundary="%"',
    "space-equals": b'; boundary = "%"',
    "space-before-equals": b'; boundary ="%"',
    "space-after-equals": b'; boundary= "%"',
    "space-in-quotes": b'; boundary=" %"',
    "space-after-in-quotes": b'; boundary="% "',
    "no-semicolon": b' boundary="%"',
    "no-separator": b'boundary="%"',
    "comma": b', boundary="%"',
    "two-semicolons": b';; boundary="%"',
    "semicolon-after": b'; boundary="%";',
    "colon": b'; boundary:"%"',
    "two-equals": b'; boundary=="%"',
    "comment-before": b'; (c) boundary="%"',
    "comment-before-close": b'; (c)boundary="%"',
    "comment-in-name": b'; bound(c)ary="%"',
    "comment-after-name": b'; boundary(c)="%"',
    "comment-after-equals": b'; boundary=(c)"%"',
    "comment-in-value": b"; boundary=~(c)^",
    "comment-after-value": b'; boundary="%" (c)',
    "comment-after-bare": b"; boundary=%(c)",
    "comment-with-boundary": b'; (boundary="*") boundary="%"',
    "comment-hides-boundary": b'; (boundary="%")',
    "comment-open": b'; (c boundary="%"',
    "comment-nested": b'; (a(b)c) boundary="%"',
    "comment-quote": b'; (") boundary="%" (")',
    "comment-escape": b'; (\\)) boundary="%"',
    "no-closing-quote": b'; boundary="%',
    "no-opening-quote": b'; boundary=%"',
    "quote-in-middle": b'; boundary="~"^',
    "quote-second-half": b'; boundary=~"^"',
    "two-quoted": b'; boundary="~""^"',
    "two-quoted-space": b'; boundary="~" "^"',
    "escaped-char": b'; boundary="~\\^"',
    "escaped-all": b'; boundary="\\%"',
    "escaped-quote": b'; boundary=\\"%\\"',
    "escaped-name": b'; bound\\ary="%"',
    "escape-at-end": b'; boundary="%\\"',
    "empty-then-good": b'; boundary=""; boundary="%"',
    "good-then-empty": b'; boundary="%"; boundary=""',
    "decoy-first": b'; boundary="*"; boundary="%"',
    "decoy-last": b'; boundary="%"; boundary="*"',
    "decoy-bare-first": b"; boundary=*; boundary=%",
    "decoy-in-value": b'; x="boundary=*"; boundary="%"',
    "hidden-in-value": b'; x="; boundary=%"',
    "hidden-in-quotes": b'; x="a\\"; boundary="%"',
    "hidden-after-quote": b'; x="; boundary="%"',
    "hidden-single-quotes": b"; x='; boundary=%; y='",
    "hidden-bare": b"; x=y boundary=%",
    "hidden-comma": b"; x=y, boundary=%",
    "prefixed-name": b'; xboundary="%"',
    "suffixed-name": b'; boundaryx="%"',
    "quoted-name": b'; "boundary"="%"',
    "extended": b"; boundary*=utf-8''$",
    "extended-plain": b"; boundary*=%",
    "extended-quoted": b"; boundary*=\"utf-8''$\"",
    "extended-no-charset": b"; boundary*=''$",
    "extended-one-quote": b"; boundary*='$",
    "extended-unknown-charset": b"; boundary*=foo'en'$",
    "extended-utf16": b"; boundary*=utf-16be''#",
    "extended-utf7": b"; boundary*=utf-7''$",
    "extended-lower": b"; BOUNDARY*=us-ascii''$",
    "pieces": b'; boundary*0="~"; boundary*1="^"',
    "pieces-bare": b"; boundary*0=~; boundary*1=^",
    "pieces-reversed": b'; boundary*1="^"; boundary*0="~"',
    "pieces-from-one": b'; boundary*1="~"; boundary*2="^"',
    "pieces-gap": b'; boundary*0="~"; boundary*2="^"',
    "pieces-zeros": b'; boundary*00="~"; boundary*01="^"',
    "pieces-one": b'; boundary*0="%"',
    "pieces-only-one": b'; boundary*1="%"',
    "pieces-twice": b'; boundary*0="*"; boundary*0="~"; boundary*1="^"',
    "pieces-twice-last": b'; boundary*0="~"; boundary*0="*"; boundary*1="^"',
    "pieces-encoded": b"; boundary*0*=utf-8''~; boundary*1*=^",
    "pieces-encoded-one": b"; boundary*0*=utf-8''$",
    "pieces-mixed": b"; boundary*0*=utf-8''~; boundary*1=^",
    "pieces-encoded-late": b"; boundary*0=~; boundary*1*=^",
    "pieces-charset-plain": b"; boundary*0=utf-8''~; boundary*1=^",
    "pieces-and-decoy": b'; boundary="*"; boundary*0="~"; boundary*1="^"',
    "pieces-then-decoy": b'; boundary*0="~"; boundary*1="^"; boundary="*"',
    "decoy-pieces": b'; boundary="%"; boundary*0="de"; boundary*1="coy"',
    "decoy-pieces-first": b'; boundary*0="de"; boundary*1="coy"; boundary="%"',
    "extended-and-decoy": b"; boundary=\"*\"; boundary*=utf-8''$",
    "extended-then-decoy": b"; boundary*=utf-8''$; boundary=\"*\"",
    "decoy-extended": b"; boundary=\"%\"; boundary*=utf-8''*",
    "decoy-extended-first": b"; boundary*=utf-8''*; boundary=\"%\"",
    "extended-and-pieces": b"; boundary*=utf-8''*; boundary*0=~; boundary*1=^",
    "encoded-word": b'; boundary="=?utf-8?q?%?="',
    "encoded-word-bare": b"; boundary==?utf-8?q?%?=",
    "encoded-word-base64": b'; boundary="=?utf-8?b?!?="',
    "encoded-words": b'; boundary="=?utf-8?q?~?= =?utf-8?q?^?="',
    "nul-after": b'; boundary="%\0"',
    "nul-bare": b"; boundary=%\0x",
    "nul-name": b'; boundary\0="%"',
    "vt": b';\x0bboundary="%"',
    "junk-after-quotes": b'; boundary="%"junk',
    "junk-after-bare": b"; boundary=% junk",
    "other-params": b'; charset="x"; type="text/html"; boundary="%"; y=z',
    "late": b"; x=" + b"y" * 1990 + b'; boundary="%"',
    "many-params": b"; x=y" * 300 + b'; boundary="%"',
    "missing": b"",
    "no-value": b"; boundary",
    "no-value-equals": b"; boundary=",
}


def write_param(how: str, value: bytes, name: bytes = b"boundary", decoy: bytes = DECOY) -> bytes:
    half, utf16 = len(value) // 2, value.decode("latin-1").encode("utf-16be")
    text = PARAMS[how].replace(b"boundary", name)
    for before in (b'"', b"=", b"''"):  # elsewhere it is the star of RFC 2231
        text = text.replace(before + b"*", before + b"\1")
    marks = {
        b"\1": decoy,
        b"~": value[:half],
        b"^": value[half:],
        b"$": b"".join(b"%%%02x" % byte for byte in value),
        b"#": b"".join(b"%%%02x" % byte for byte in utf16),
        b"!": base64.b64encode(value),
        b"%": value,
    }
    return re.sub(rb"[\1~^$#!%]", lambda mark: marks[mark.group()], text)


# --- delimiters, heads, lines --------------------------------------------------------------------

# The lines around the parts: % is the boundary, 1 and 2 the parts, O the other boundary.
BODIES: dict[str, bytes] = {
    "plain": b"\n--%\n1\n--%\n2\n--%--\n",
    "no-preamble": b"--%\n1\n--%\n2\n--%--\n",
    "preamble": b"This is a mail in MIME format.\n\n--%\n1\n--%\n2\n--%--\n",
    "epilogue": b"\n--%\n1\n--%\n2\n--%--\n\nbye\n",
    "space-after": b"\n--% \n1\n--% \n2\n--%-- \n",
    "tab-after": b"\n--%\t\n1\n--%\t\t\n2\n--%--\t\n",
    "text-after": b"\n--% x\n1\n--% x\n2\n--%-- x\n",
    "letter-after": b"\n--%x\n1\n--%x\n2\n--%x--\n",
    "text-after-second": b"\n--%\n1\n--%x\n2\n--%--\n",
    "vt-after": b"\n--%\x0b\n1\n--%\x0b\n2\n--%--\n",
    "cr-after": b"\n--%\r\n1\n--%\r\n2\n--%--\n",
    "nul-after": b"\n--%\0\n1\n--%\0\n2\n--%--\n",
    "nul-before": b"\n\0--%\n1\n\0--%\n2\n\0--%--\n",
    "cr-before": b"\n--%\n1\r--%\n2\r--%--\n",
    "vt-before": b"\n\x0b--%\n1\n\x0b--%\n2\n\x0b--%--\n",
    "space-before": b"\n --%\n1\n --%\n2\n --%--\n",
    "space-before-second": b"\n--%\n1\n --%\n2\n--%--\n",
    "one-dash": b"\n-%\n1\n-%\n2\n-%--\n",
    "three-dashes": b"\n---%\n1\n---%\n2\n---%--\n",
    "no-dashes": b"\n%\n1\n%\n2\n%--\n",
    "dash-space": b"\n-- %\n1\n-- %\n2\n-- %--\n",
    "wrong-case": b"\n--B0UNDARY\n1\n--B0UNDARY\n2\n--B0UNDARY--\n",
    "no-close": b"\n--%\n1\n--%\n2\n",
    "one-dash-close": b"\n--%\n1\n--%\n2\n--%-\n",
    "no-second": b"\n1\n2\n--%--\n",
    "only-first": b"\n--%\n2\n",
    "only-close": b"\n2\n--%--\n",
    "none": b"\n2\n",
    "close-first": b"\n--%--\n--%\n1\n--%\n2\n--%--\n",
    "close-as-opener": b"\n--%--\n1\n--%--\n2\n--%--\n",
    "close-between": b"\n--%\n1\n--%--\n--%\n2\n--%--\n",
    "close-between-blank": b"\n--%\n1\n--%--\n\n--%\n2\n--%--\n",
    "close-then-part": b"\n--%\n1\n--%--\n2\n",
    "close-space": b"\n--%\n1\n--% --\n2\n--%--\n",
    "close-text": b"\n--%\n1\n--%--x\n2\n--%--\n",
    "part-in-preamble": b"2\n--%\n1\n--%--\n",
    "part-in-preamble-blank": b"\n2\n\n--%\n1\n--%--\n",
    "part-in-epilogue": b"\n--%\n1\n--%--\n2\n",
    "delimiter-twice": b"\n--%\n--%\n1\n--%\n--%\n2\n--%--\n",
    "blank-after": b"\n--%\n\n1\n--%\n\n2\n--%--\n",
    "no-blank-before": b"--%\n1\n--%\n2\n--%--",
    "no-last-newline": b"\n--%\n1\n--%\n2\n--%--",
    "payload-first": b"\n--%\n2\n--%\n1\n--%--\n",
    "payload-first-only-close": b"\n--%\n2\n--%--\n",
    "other-delimiter": b"\n--O\n1\n--O\n2\n--O--\n",
    "other-between": b"\n--%\n1\n--O\n2\n--%--\n",
    "other-first": b"\n--O\n1\n--%\n2\n--%--\n",
    "decoy-between": b"\n--%\n1\n--decoy\n2\n--%--\n",
    "decoy-delimiter": b"\n--decoy\n1\n--decoy\n2\n--decoy--\n",
    "decoy-around": b"\n--decoy\n\nx\n--decoy--\n--%\n1\n--%\n2\n--%--\n",
    "decoy-inside": b"\n--%\n1\n--%\n--decoy\n\nx\n--decoy\n2\n--decoy--\n--%--\n",
    "half-delimiter": b"\n--b0un\n1\n--b0un\n2\n--b0un--\n",
    "literal-quotes": b'\n--"%"\n1\n--"%"\n2\n--"%"--\n',
    "single-quotes": b"\n--'%'\n1\n--'%'\n2\n--'%'--\n",
    "same-nested": b"\n--%\nContent-Type: multipart/mixed; boundary=%\n\n--%\n1\n--%\n2\n--%--\n--%--\n",
    "same-nested-closed": b"\n--%\nContent-Type: multipart/mixed; boundary=%\n\n--%\n1\n--%--\n--%\n2\n--%--\n",
    "nested-longer": b"\n--%\nContent-Type: multipart/mixed; boundary=%-2\n\n--%-2\n1\n--%-2\n2\n--%-2--\n--%--\n",
    "nested-close": b"\n--%\nContent-Type: multipart/mixed; boundary=%--\n\n--%--\n1\n--%--\n2\n--%----\n--%--\n",
    "nested-no-close": b"\n--%\nContent-Type: multipart/mixed; boundary=in\n\n--in\n1\n--%\n2\n--%--\n",
    "nested-crossed": b"\n--%\nContent-Type: multipart/mixed; boundary=in\n\n--in\n1\n--%--\n--in\n2\n--in--\n--%--\n",
    "nested-unknown": b"\n--%\nContent-Type: multipart/mixed\n\n--in\n1\n--in\n2\n--in--\n--%--\n",
    "nested-empty": b'\n--%\nContent-Type: multipart/mixed; boundary=""\n\n--\n1\n--\n2\n----\n--%--\n',
    "nested-late": b"\n--%\n1\n--%\nContent-Type: multipart/mixed; boundary=in\n\n--%\n2\n--in\n2\n--in--\n--%--\n",
    "delimiter-in-head": b"\n--%\n1\n--%\nX-A: b\n--%\n2\n--%--\n",
    "delimiter-in-fold": b"\n--%\n1\n--%\nX-A: b\n --%\n2\n--%--\n",
}

HEAD_ENDS: dict[str, bytes] = {  # of the payload's part
    "plain": b"",
    "space": b" ",
    "tab": b"\t",
    "space-tab": b" \t ",
    "cr": b"\r",
    "vt": b"\x0b",
    "nul": b"\0",
    "dot": b".",
    "text": b"no field",
    "colon": b":",
    "two-blank": b"\n",
    "space-then-blank": b" \n",
    "text-then-blank": b"no field\n",
    "fold-then-blank": b" folded\n",
    "dashes": b"--",
    "from-line": b"From x\n",
}

ENCODING_VALUES: dict[str, bytes] = {  # % is the declared encoding, - no field at all
    "plain": b"%",
    "missing": b"",
    "upper-case": b"^",
    "mixed-case": b"~",
    "comment-after": b"% (c)",
    "comment-before": b"(c) %",
    "comment-close": b"%(c)",
    "comment-inside": b"ba(c)se64",
    "quoted": b'"%"',
    "semicolon": b"%;",
    "semicolon-first": b"; %",
    "param": b"%; x=y",
    "comma": b"%, 7bit",
    "comma-first": b"7bit, %",
    "comma-only": b"%,",
    "word-after": b"% x",
    "word-before": b"x %",
    "space-inside": b"base 64",
    "x-prefix": b"x-%",
    "letters-after": b"%x",
    "letters-before": b"x%",
    "dot": b"%.",
    "encoded-word": b"=?utf-8?q?%?=",
    "encoded-word-base64": b"=?utf-8?b?YmFzZTY0?=",
    "escaped": b"b\\ase64",
    "nul": b"%\0",
    "latin1": b"%\xe9",
    "slash": b"%/x",
    "is-7bit": b"7bit",
    "is-8bit": b"8bit",
    "is-binary": b"binary",
    "is-quoted-printable": b"quoted-printable",
    "is-base64": b"base64",
    "is-uuencode": b"x-uuencode",
    "is-uue": b"x-uue",
    "is-uuencode-short": b"uuencode",
    "is-yenc": b"x-yenc",
    "is-gzip64": b"x-gzip64",
    "is-binhex": b"x-binhex40",
    "is-unknown": b"x-unknown",
    "is-empty": b" ",
    "is-abbreviated": b"b",
    "is-base": b"base",
    "twice-7bit-last": b"%\nContent-Transfer-Encoding: 7bit",
    "twice-7bit-first": b"7bit\nContent-Transfer-Encoding: %",
    "twice-8bit-first": b"8bit\nContent-Transfer-Encoding: %",
    "twice-qp-last": b"%\nContent-Transfer-Encoding: quoted-printable",
    "twice-qp-first": b"quoted-printable\nContent-Transfer-Encoding: %",
    "twice-base64-last": b"%\nContent-Transfer-Encoding: base64",
    "twice-base64-first": b"base64\nContent-Transfer-Encoding: %",
    "twice-empty-last": b"%\nContent-Transfer-Encoding:",
    "twice-empty-first": b"\nContent-Transfer-Encoding: %",
    "twice-unknown-first": b"x-unknown\nContent-Transfer-Encoding: %",
    "twice-unknown-last": b"%\nContent-Transfer-Encoding: x-unknown",
    "content-encoding": b"%\nContent-Encoding: 7bit",
}

PART_TYPES: dict[str, bytes] = {
    "octets": b'Content-Type: application/octet-stream; name="file.bin"',
    "zip": b"Content-Type: application/zip",
    "text": b"Content-Type: text/plain",
    "text-name": b'Content-Type: text/plain; name="file.bin"',
    "text-utf16": b"Content-Type: text/plain; charset=utf-16",
    "text-utf7": b"Content-Type: text/plain; charset=utf-7",
    "text-flowed": b"Content-Type: text/plain; format=flowed; delsp=yes",
    "html": b"Content-Type: text/html",
    "calendar": b"Content-Type: text/calendar",
    "rfc822-headers": b"Content-Type: text/rfc822-headers",
    "image": b"Content-Type: image/png",
    "message": b"Content-Type: message/rfc822",
    "global": b"Content-Type: message/global",
    "delivery-status": b"Content-Type: message/delivery-status",
    "disposition-notification": b"Content-Type: message/disposition-notification",
    "partial": b'Content-Type: message/partial; number=1; total=1; id="x@y"',
    "partial-of-two": b'Content-Type: message/partial; number=1; total=2; id="x@y"',
    "external": b'Content-Type: message/external-body; access-type=local-file; name="x"',
    "news": b"Content-Type: message/news",
    "http": b"Content-Type: message/http",
    "multipart": b"Content-Type: multipart/mixed",
    "multipart-boundary": b"Content-Type: multipart/mixed; boundary=inner",
    "multipart-outer-boundary": b"Content-Type: multipart/mixed; boundary=b0undary",
    "multipart-extended": b"Content-Type: multipart/mixed; boundary*0=inner",
    "tnef": b"Content-Type: application/ms-tnef",
    "binhex": b"Content-Type: application/mac-binhex40",
    "applefile": b"Content-Type: application/applefile",
    "uue": b"Content-Type: application/x-uuencode",
    "missing": b"",
    "empty": b"Content-Type:",
    "no-slash": b"Content-Type: application",
    "garbage": b"Content-Type: ;;;=;",
    "twice-text-last": b"Content-Type: application/octet-stream\nContent-Type: text/plain",
    "twice-text-first": b"Content-Type: text/plain\nContent-Type: application/octet-stream",
    "twice-multipart-first": b"Content-Type: multipart/mixed; boundary=x\nContent-Type: application/octet-stream",
    "twice-multipart-last": b"Content-Type: application/octet-stream\nContent-Type: multipart/mixed; boundary=x",
    "twice-message-first": b"Content-Type: message/rfc822\nContent-Type: application/octet-stream",
    "twice-message-last": b"Content-Type: application/octet-stream\nContent-Type: message/rfc822",
}

DISPOSITIONS: dict[str, bytes] = {
    "attachment": b'Content-Disposition: attachment; filename="file.bin"',
    "missing": b"",
    "inline": b"Content-Disposition: inline",
    "inline-name": b"Content-Disposition: inline; filename=file.bin",
    "no-name": b"Content-Disposition: attachment",
    "name-only": b"Content-Disposition: filename=file.bin",
    "eml-name": b"Content-Disposition: attachment; filename=file.eml",
    "txt-name": b"Content-Disposition: attachment; filename=file.txt",
    "dat-name": b"Content-Disposition: attachment; filename=winmail.dat",
    "path-name": b"Content-Disposition: attachment; filename=../../file.bin",
    "empty-name": b'Content-Disposition: attachment; filename=""',
    "quoted-delimiter": b'Content-Disposition: attachment; filename="\n--b0undary\n"',
    "form-data": b'Content-Disposition: form-data; name="x"; filename="file.bin"',
}

LAYOUTS = (
    *("multipart", "single", "nested", "nested-outer", "rfc822", "rfc822-single", "rfc822-base64", "rfc822-qp"),
    *("rfc822-no-blank", "global", "global-base64", "rfc822-attached-eml", "octets-eml", "multipart-base64"),
    *("multipart-qp", "inner-multipart-base64", "inner-multipart-qp", "digest", "partial-one", "partial-two"),
    *("external", "text-embedded", "second-head", "mail-in-preamble", "deep", "mbox", "bounce", "double-head"),
)
EOLS = ("crlf", "lf", "cr", "mixed-crlf-lf", "mixed-all", "lfcr", "crcrlf", "head-lf", "body-lf", "head-crlf-body-cr")
OUTER = ("plain", "no-mime-version", "from-line", "space-first", "blank-first", "no-fields", "junk-first", "lower-case")
ENDS = ("plain", "truncated", "no-newline", "nul", "ctrl-z", "blank-lines", "dot")
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
        return self.edit(self.ended(self.joined(lines, body)))

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
        part = self.part()
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

    def type_fields(self) -> Lines:
        kind = TYPES[self.choice("type")].replace(b"%", b"multipart/mixed")
        value = kind + write_param(self.choice("param"), self.boundary)
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


MARKS = (b";", b'"', b"(", b")", b"\\", b"=", b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b"--", b"-", b":", b",", b"/")
MORE_MARKS = (b"'", b"*", b"%", b"=?", b"?=", b"<", b">", b"\x0b", b"\x0c", b"\xff", b"\xc2\xa0", b"\n ", b"\n\n")
WORDS = (b"boundary", b"multipart/mixed", b"base64", b"content-type:", b"--b0undary", b"--b0undary--", b"begin 644 x")


def edited(mail: bytes, dice: Random) -> tuple[bytes, str]:
    """The mail with one small change, and what was changed."""
    lines = mail.split(b"\n")
    number = dice.randrange(len(lines))
    for _ in range(4):
        if len(lines[number]) <= 70:
            break
        number = dice.randrange(len(lines))
    line = lines[number]
    at = dice.randint(0, len(line))
    match dice.randrange(8):
        case 0:
            lines[number : number + 1] = []
            what = "delete"
        case 1:
            lines.insert(number, line)
            what = "repeat"
        case 2:
            other = dice.randrange(len(lines))
            lines[number], lines[other] = lines[other], lines[number]
            what = f"swap-with({_kind(lines[number])})"
        case 3:
            size = dice.choice((1, 1, 2, 5))
            lines[number] = line[:at] + line[at + size :]
            what = f"cut({line[at : at + size]!r})"
        case 4:
            word = dice.choice(WORDS)
            lines[number] = line[:at] + word + line[at:]
            what = f"insert({word!r})"
        case 5 if line:
            at = dice.randrange(len(line))
            lines[number] = line[:at] + bytes([line[at] ^ 0x20]) + line[at + 1 :]
            what = f"flip({line[at : at + 1]!r})"
        case _:
            mark = dice.choice(MARKS + MORE_MARKS)
            lines[number] = line[:at] + mark + line[at:]
            what = f"insert({mark!r})"
    return b"\n".join(lines), f"{what}@{_kind(line)}"


def _kind(line: bytes) -> str:
    """What kind of line it is, for the name of a class."""
    field = re.match(rb"[A-Za-z-]+:", line)
    if field:
        return field.group().decode().lower()
    if line.startswith(b"--"):
        return "delimiter"
    return "blank" if not line.strip() else "text"


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
