"""Containers, made byte by byte, and what the inspection and other programs find in them."""

from __future__ import annotations

import base64
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.service.analysis.decision import INCOMPLETE, DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import Decisions
from tests.service.service_kit import EICAR, attached, mail, zipped

SCRIPT = b"WScript.Echo(1)"
ZIP = zipped(("eicar.com", EICAR))


def tags(content: bytes, name: str = "a.bin") -> set[str]:
    found = inspect(attached(content, name), Limits())
    return found.tags | {f"limit:{limit}" for limit in found.limits}


def decision(content: bytes, name: str = "a.bin") -> str:
    found = tags(content, name)
    if any(tag.startswith("limit:") for tag in found):
        found.add(INCOMPLETE)
    return DecisionTable(Decisions()).decide(found).decision.value


def extracted(program: str, content: bytes, name: str, directory: Path) -> dict[str, bytes]:
    """What this program extracts; skips the test if it is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    place = directory / program
    place.mkdir()
    (place / name).write_bytes(content)
    command = {
        "unzip": ["unzip", "-o", "-q", name],
        "jar": ["jar", "xf", name],
        "tar": ["tar", "-xf", name],
        "gpg": ["gpg", "--homedir", ".", "--batch", "--output", "out", "--decrypt", name],
        "tnef": ["tnef", "--overwrite", name],
        "gunzip": ["gunzip", "-k", "-N", name],
        "bunzip2": ["bunzip2", "-k", name],
        "xz": ["xz", "-d", "-k", name],
        "unlzma": ["unlzma", "-k", name],
        "7z": ["7z", "x", "-y", name],
        "unar": ["unar", "-q", "-f", name],
    }[program]
    subprocess.run(command, cwd=place, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    files = [path for path in place.rglob("*") if path.is_file() and path.name != name]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def local(name: bytes, data: bytes, *, method: int, crc: int, size: int, version: int = 20, flags: int = 0,
          packed: int = -1, extra: bytes = b"") -> bytes:  # fmt: skip
    packed = len(data) if packed < 0 else packed
    head = struct.pack("<4sHHHIIIIHH", b"PK\3\4", version, flags, method, 0, crc, packed, size, len(name), len(extra))
    return head + name + extra + data


def entry(name: bytes, *, method: int, crc: int, packed: int, size: int, version: int = 20, flags: int = 0,
          extra: bytes = b"", offset: int = 0, comment: bytes = b"") -> bytes:  # fmt: skip
    head = struct.pack("<4sHHHHIIII", b"PK\1\2", 20, version, flags, method, 0, crc, packed, size)
    lengths = struct.pack("<HHHHHII", len(name), len(extra), len(comment), 0, 0, 0, offset)
    return head + lengths + name + extra + comment


def with_directory(headers: bytes, *entries: bytes) -> bytes:
    directory = b"".join(entries)
    count = len(entries)
    return (
        headers + directory + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), len(headers), 0)
    )


def one_member(content: bytes, **entry_says: object) -> bytes:
    """A zip file with one deflated member, whose directory says something else."""
    data, crc = deflated(content), zlib.crc32(content)
    says = {"name": b"a.txt", "method": 8, "crc": crc, "packed": len(data), "size": len(content)} | entry_says
    header = local(b"a.txt", data, method=8, crc=crc, size=len(content), version=int(says.get("version", 20)))
    return with_directory(header, entry(**says))


RAW = deflated(EICAR)
ZIPS = {
    "the directory says stored, the header deflated": one_member(
        EICAR, method=0, crc=zlib.crc32(RAW), packed=len(RAW), size=len(RAW)
    ),
    "the directory says empty": one_member(EICAR, method=0, crc=0, packed=0, size=0),
    "the directory says shorter": with_directory(
        local(b"a.txt", b"harmless  " + EICAR, method=0, crc=zlib.crc32(b"harmless  " + EICAR), size=len(EICAR) + 10),
        entry(b"a.txt", method=0, crc=zlib.crc32(b"harmless  "), packed=10, size=10),
    ),
    "bytes before it": b"MZ junk" + one_member(EICAR),
}


def tarred(*members: tuple[str, bytes, bytes], between: bytes = b"") -> bytes:
    out = b""
    for name, kind, content in members:
        info = tarfile.TarInfo(name)
        info.size, info.type = len(content), kind
        out += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512) + between
    return out + bytes(1024)


def attribute(kind: int, value: bytes, level: int = 2) -> bytes:
    return struct.pack("<BII", level, kind, len(value)) + value + struct.pack("<H", sum(value) & 0xFFFF)


def prop(tag: int, value: bytes) -> bytes:
    return struct.pack("<III", tag, 1, len(value)) + value + bytes(-len(value) % 4)


def winmail(*properties: bytes, title: bytes = b"a.zip\0", data: bytes | None = None) -> bytes:
    out = b"\x78\x9f\x3e\x22\x01\0" + attribute(0x00089006, struct.pack("<I", 0x10000), 1)
    out += attribute(0x00069007, struct.pack("<II", 1252, 0), 1)
    out += attribute(0x00069002, struct.pack("<HIII", 1, 0xFFFFFFFF, 0, 0)) + attribute(0x00018010, title)
    if data is not None:
        out += attribute(0x0006800F, data)
    return out + attribute(0x00069005, struct.pack("<I", len(properties)) + b"".join(properties))


def length(count: int) -> bytes:
    return bytes([count]) if count < 128 else b"\x84" + count.to_bytes(4, "big")


def element(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + length(len(value)) + value


def unending(tag: int, value: bytes) -> bytes:
    return bytes([tag, 0x80]) + value + b"\0\0"


DATA, SIGNED, COMPRESSED_DATA, OTHER = (
    bytes.fromhex(oid)
    for oid in (
        "06092a864886f70d010701",
        "06092a864886f70d010702",
        "060b2a864886f70d0109100109",
        "060b2a864886f70d0109100101",
    )
)
MESSAGE = attached(EICAR, "eicar.com")
OCTETS = element(4, MESSAGE)


def cms(content: bytes, *, kind: bytes = DATA, algorithms: bytes = b"", outer: bytes = SIGNED,
        put: Callable[[int, bytes], bytes] = element) -> bytes:  # fmt: skip
    info = put(0x30, kind + put(0xA0, content))
    signed = element(2, b"\1") + element(0x31, algorithms) + info + element(0x31, b"")
    return put(0x30, outer + put(0xA0, put(0x30, signed)))


def signed_mail(der: bytes, kind: str = "application/pkcs7-mime; smime-type=signed-data; name=smime.p7m") -> bytes:
    body = base64.encodebytes(der).replace(b"\n", b"\r\n")
    return mail(body, Content_Type=kind, Content_Transfer_Encoding="base64")


HARMLESS = element(0x30, DATA + element(0xA0, element(4, b"Subject: x\r\n\r\nAll is fine\r\n")))
NOISE = element(4, bytes(range(128, 256)) * 8)
PIECES = b"".join(element(4, MESSAGE[at : at + 7]) for at in range(0, len(MESSAGE), 7))
SMIME = {
    "one piece": cms(OCTETS),
    "a decoy among the algorithms": cms(OCTETS, algorithms=element(0x30, DATA + HARMLESS + NOISE)),
    "another type of content": cms(OCTETS, kind=OTHER, algorithms=NOISE),
    "unending": cms(unending(0x24, PIECES), put=unending),
    "pieces in pieces": cms(unending(0x24, unending(0x24, PIECES[:-9]) + element(0x24, PIECES[-9:]))),
    "compressed": cms(element(4, zlib.compress(MESSAGE)), outer=COMPRESSED_DATA),
    "compressed and cut off": cms(element(4, zlib.compress(MESSAGE)[:-4]), outer=COMPRESSED_DATA),
    "signed within signed": cms(cms(OCTETS)),
    "cut off": cms(OCTETS)[:-5],
    "text": cms(element(4, b"Subject: x\r\n\r\n" + EICAR)),
}
