"""Compressed RTF (MS-OXRTFCP): how Outlook writes the text of a mail into `winmail.dat`. Nothing here raises."""

from __future__ import annotations

_HEADER = 16  # two lengths, the kind and a checksum
_KIND = slice(8, 12)
_WINDOW = 4096  # how many bytes back a reference can reach
_DICTIONARY = (
    rb"{\rtf1\ansi\mac\deff0\deftab720{\fonttbl;}{\f0\fnil \froman \fswiss \fmodern \fscript \fdecor MS Sans Serif"
    rb"SymbolArialTimes New RomanCourier{\colortbl\red0\green0\blue0"
    + b"\r\n"
    + rb"\par \pard\plain\f0\fs20\b\i\u\tab\tx"
)


def is_compressed(data: bytes) -> bool:
    return data[_KIND] in (b"LZFu", b"MELA")


def decompressed(data: bytes) -> bytes:
    """The text, or as much of it as there is. It is at most nine times as long."""
    if data[_KIND] == b"MELA":  # stored
        return data[_HEADER:]
    out, at = bytearray(_DICTIONARY), _HEADER
    while at < len(data):
        control, at = data[at], at + 1
        for bit in range(8):
            if not control >> bit & 1:
                out += data[at : at + 1]
                at += 1
                continue
            reference, at = int.from_bytes(data[at : at + 2], "big"), at + 2
            back = (len(out) - (reference >> 4)) % _WINDOW
            if back == 0 or at > len(data):  # it refers to its own place: the end
                return bytes(out[len(_DICTIONARY) :])
            for _ in range((reference & 15) + 2):
                out.append(out[-back] if back <= len(out) else 0)  # before the beginning, there is nothing
    return bytes(out[len(_DICTIONARY) :])
