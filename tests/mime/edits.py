"""Small random edits of a mail, for what no table names: a byte, a word or a line more or less."""

from __future__ import annotations

import re
from random import Random

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
