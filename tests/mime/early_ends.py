"""Boundaries that end early for some readers, and the parts in which that hides another part from the rest.

Tables like those in `mutations`: to a reader that takes `foo` of `boundary=foo:bar` for the boundary, `--foo` is a
delimiter; to all others, it is a line of an ordinary file.
"""

from __future__ import annotations

# Where readers end a boundary that is not in quotes: what stands before it delimits other parts for them. The last two
# are for readers that compare only the beginning of a line, or take every line with dashes for a delimiter.
STOPS: dict[str, bytes] = {
    "colon": b":",
    "slash": b"/",
    "equals": b"=",
    "question-mark": b"?",
    "comma": b",",
    "at": b"@",
    "less-than": b"<",
    "bracket": b"[",
    "parenthesis": b"(",
    "backslash": b"\\",
    "single-quote": b"'",
    "quote": b'"',
    "space": b" ",
    "tab": b"\t",
    "nul": b"\0",
    "latin1": b"\xe9",
    "percent": b"%",
    "ampersand": b"&",
    "brace": b"{",
    "tilde": b"~",
    "star": b"*",
    "dash": b"-",
    "letter": b"x",
}
# A part before such a delimiter: its head, and lines of its content.
LEAVES: tuple[tuple[bytes, bytes], ...] = (
    (b"application/octet-stream", b"quoted-printable"),
    (b"text/html", b"quoted-printable"),
    (b"image/png", b"quoted-printable"),
    (b"application/octet-stream", b"base64"),
    (b"application/octet-stream", b"binary"),
    (b"text/plain", b"7bit"),
)
LEAF_LINES: dict[bytes, bytes] = {
    b"quoted-printable": b"=00=01=02=FF=FE=90 binary =3D",
    b"base64": b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygp",
}
