"""Documents that are encrypted with a password that Office itself tries: they open without asking for one.

Excel and PowerPoint write them if anyone may read a document but a password is needed to change it; attackers write
them because scanners cannot look into an encrypted document. Both forms of encrypted OOXML are read (MS-OFFCRYPTO
2.3.4.5 and 2.3.4.10) if `cryptography` is installed, and old workbooks in RC4 (2.3.5 and 2.3.6) or obfuscated with XOR
(2.3.7). All work is charged; nothing here raises anything but TooMuch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bridge.mime.encodings import decode
from bridge.service.analysis.content import office_xml
from bridge.service.analysis.content.unpacking import Budget

_Hash = Callable[..., "hashlib._Hash"]
_md5, _sha1 = (partial(hashlib.new, name, usedforsecurity=False) for name in ("md5", "sha1"))
_PASSWORDS = ("VelvetSweatshop", "/01Hannes Ruescher/01")
_SPIN_WORK = 100  # for each round in which a password is hashed: about 1 us (3.11)
_KEY_WORK = 25_000  # for each key and password: two hashes, eight Base64 texts, six short decryptions
_AES_WORK, _RC4_WORK, _XOR_WORK = 2, 20, 20  # for each byte
_SPINS = 50_000  # of the older form; the newer one says how many
_HASHES = ("MD5", "SHA1", "SHA256", "SHA384", "SHA512")
_DATA, _KEY = "keyData", "encryptedKey"
_DESCRIBED = frozenset({_DATA, _KEY})
_ZIP = b"PK"  # the beginning of every such document
_INPUT_KEY, _VALUE_KEY, _KEY_KEY = (
    bytes.fromhex(text) for text in ("fea7d2763b4b9e79", "d7aa0f6d3061344e", "146e0be7abacd0d6")
)
_AES_BLOCK = 16
_SEGMENT = 4096  # bytes of a package that are encrypted together
_SHORT = 5  # bytes of a key of 40 bits
_BOOK_BLOCK = 1024  # bytes of a workbook that are encrypted with one key
_FIRST_RECORDS = 100  # of which one says how the others are encrypted
_FILE_PASS, _BOUND_SHEET = 0x2F, 0x85
_XOR, _RC4 = 0, 1  # how a workbook is encrypted, from Excel 97 on
_BEFORE_EXCEL_97 = 4  # bytes of the record then: only XOR
_XOR_FILL, _XOR_LENGTH = bytes.fromhex("bbffffbaffffb98000be0f00bf0f00"), 16
_ROTATED, _KEY_ROTATED = (bytes((byte << count | byte >> 8 - count) & 0xFF for byte in range(256)) for count in (3, 2))
_RECORD_WORK = 100  # for each record of a workbook
_NOT_ENCRYPTED = frozenset({0x809, _FILE_PASS, 0xE1, 0x194, 0x195, 0x196, 0x138})  # BOF, InterfaceHdr and the like


def package(info: bytes, encrypted: bytes, budget: Budget) -> bytes | None:
    """The document in the streams `EncryptionInfo` and `EncryptedPackage`.

    Empty if it needs another password; None if the description of the encryption, in the first stream, cannot be read.
    """
    read = _agile if info[:4] == b"\4\0\4\0" else _standard if info[2:4] == b"\2\0" else None
    if read is None or len(encrypted) <= 8:
        return b""
    try:
        decrypted = read(info, encrypted[8:], budget)
    except (ImportError, ValueError, struct.error, IndexError, KeyError):
        return b""
    return decrypted and decrypted[: int.from_bytes(encrypted[:8], "little")]


def _standard(info: bytes, encrypted: bytes, budget: Budget) -> bytes:
    """AES with each block on its own."""
    header = int.from_bytes(info[8:12], "little")
    bits = int.from_bytes(info[28:32], "little") or 128
    verifier = info[12 + header :]
    salt, first, second = verifier[4:20], verifier[20:36], verifier[40:72]
    for password in _PASSWORDS:
        hashed = _spun(_sha1, salt, password, _SPINS, budget)
        hashed = _sha1(hashed + bytes(4)).digest()
        key = b"".join(_padded_hash(hashed, byte) for byte in (0x36, 0x5C))[: bits // 8]
        if _sha1(_decrypted(first, key)).digest() == _decrypted(second, key)[:20]:
            budget.take_work(_AES_WORK * len(encrypted))
            return _decrypted(encrypted, key)
    return b""


def _padded_hash(hashed: bytes, byte: int) -> bytes:
    return _sha1(bytes(byte ^ other for other in hashed.ljust(64, b"\0"))).digest()


def _agile(info: bytes, encrypted: bytes, budget: Budget) -> bytes | None:
    """The key is random, and is itself encrypted, once for each password or certificate. An XML document says how."""
    budget.take_work(len(info) + office_xml.work_of_elements(info.decode("latin-1"), _DESCRIBED))
    found, _ = office_xml.elements(info[8:], _DESCRIBED)
    about = [element.attributes for element in found if element.name == _DATA]
    keys = [element.attributes for element in found if element.name == _KEY]
    for key in keys:
        try:
            secret = _secret(key, budget)
        except (ValueError, KeyError):  # of a certificate, or not as Office writes it
            continue
        if secret:
            return _first_document(encrypted, secret, about, budget)
    return b"" if about and keys else None


def _secret(about: dict[str, str], budget: Budget) -> bytes:
    """The key of the document; empty if it needs another password."""
    new, salt = _hash(about["hashAlgorithm"]), _base64(about["saltValue"])
    size = int(about["keyBits"]) // 8
    if size not in (16, 24, 32):  # the sender chose it, and it is the size of an allocation
        raise ValueError("not an AES key")
    for password in _PASSWORDS:
        budget.take_work(_KEY_WORK)
        hashed = _spun(new, salt, password, int(about["spinCount"]), budget)
        keys = [_fitted(new(hashed + block).digest(), size) for block in (_INPUT_KEY, _VALUE_KEY, _KEY_KEY)]
        names = ("encryptedVerifierHashInput", "encryptedVerifierHashValue", "encryptedKeyValue")
        given, value, secret = (
            _decrypted(_base64(about[name]), key, salt) for name, key in zip(names, keys, strict=True)
        )
        if new(given[: int(about["saltSize"])]).digest() == value[: new().digest_size]:
            return secret
    return b""


def _first_document(encrypted: bytes, secret: bytes, about: list[dict[str, str]], budget: Budget) -> bytes:
    """Decrypted as one of the descriptions says; there should be one."""
    plain = b""
    for data in about:
        budget.take_work(_KEY_WORK)
        try:
            plain = _segments(encrypted, secret[: int(data["keyBits"]) // 8], data, budget)
        except (ValueError, KeyError):
            continue
        if plain.startswith(_ZIP):
            break
    return plain


def _segments(encrypted: bytes, key: bytes, about: dict[str, str], budget: Budget) -> bytes:
    new, salt = _hash(about["hashAlgorithm"]), _base64(about["saltValue"])
    budget.take_work(_AES_WORK * len(encrypted))
    return b"".join(
        _decrypted(
            encrypted[at : at + _SEGMENT], key, _fitted(new(salt + struct.pack("<I", at // _SEGMENT)).digest(), 16)
        )
        for at in range(0, len(encrypted), _SEGMENT)
    )


def _decrypted(data: bytes, key: bytes, initial: bytes | None = None) -> bytes:
    """Whole blocks; with an initial block in CBC mode, else each on its own. Raises ValueError, ImportError."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    mode = modes.ECB() if initial is None else modes.CBC(initial.ljust(_AES_BLOCK, b"\0")[:_AES_BLOCK])  # noqa: S305
    decryptor = Cipher(algorithms.AES(key), mode).decryptor()
    return decryptor.update(data[: len(data) // _AES_BLOCK * _AES_BLOCK]) + decryptor.finalize()


def _hash(name: str) -> _Hash:
    """Raises ValueError for any other name: it is the sender's."""
    plain = name.upper().replace("-", "")
    if plain not in _HASHES:
        raise ValueError("not a hash that Office uses")
    return partial(hashlib.new, plain, usedforsecurity=False)


def _spun(new: _Hash, salt: bytes, password: str, count: int, budget: Budget) -> bytes:
    budget.take_work(_SPIN_WORK * max(0, count))
    hashed = new(salt + password.encode("utf-16-le")).digest()
    for number in range(count):
        hashed = new(number.to_bytes(4, "little") + hashed).digest()
    return hashed


def _fitted(hashed: bytes, size: int) -> bytes:
    return hashed[:size].ljust(size, b"\x36")


def _base64(text: str) -> bytes:
    return decode(text.encode("latin-1", "replace"), "base64")[0]


def book(stream: bytes, budget: Budget) -> bytes:
    """The records of an old workbook, decrypted; empty if it is not encrypted, or needs another password."""
    at = 0
    for _ in range(_FIRST_RECORDS):
        if at + 4 > len(stream):
            break
        kind, size = struct.unpack_from("<HH", stream, at)
        if kind == _FILE_PASS:
            return _readable(stream, _decrypted_book(stream, stream[at + 4 : at + 4 + size], budget))
        at += 4 + size
    return b""


def _decrypted_book(stream: bytes, about: bytes, budget: Budget) -> bytes:
    """Every byte of it, whether or not it is encrypted; empty if it needs another password."""
    kind = _XOR if len(about) == _BEFORE_EXCEL_97 else int.from_bytes(about[:2], "little")
    if kind == _XOR:
        return _without_xor(stream, int.from_bytes(about[-2:], "little"), budget)
    key = _book_key(about) if kind == _RC4 else None
    return _without_rc4(stream, key, budget) if key is not None else b""


class _BookKey(NamedTuple):
    """Makes the key of each block of a workbook."""

    hash: _Hash
    start: bytes
    size: int

    def of(self, block: int) -> bytes:
        key = self.hash(self.start + struct.pack("<I", block)).digest()[: self.size]
        return key.ljust(16, b"\0") if self.size == _SHORT else key


def _book_key(about: bytes) -> _BookKey | None:
    """The record says how keys are made, and has a number with its hash, both encrypted."""
    major, minor = struct.unpack_from("<HH", about.ljust(6, b"\0"), 2)
    for password in _PASSWORDS:
        wide = password.encode("utf-16-le")
        if (major, minor) == (1, 1):
            salt, verifier = about[6:22], about[22:54]
            start = _md5((_md5(wide).digest()[:5] + salt) * 16).digest()[:5]
            key = _BookKey(_md5, start, 16)
        else:
            rest = about[14 + int.from_bytes(about[10:14], "little") :]
            salt, verifier = rest[4:20], rest[20:36] + rest[40:60]
            key = _BookKey(_sha1, _sha1(salt + wide).digest(), max(_SHORT, int.from_bytes(about[30:34], "little") // 8))
        given = _rc4(verifier, key.of(0))
        if len(given) > 16 and key.hash(given[:16]).digest() == given[16:]:
            return key
    return None


def _without_rc4(stream: bytes, key: _BookKey, budget: Budget) -> bytes:
    budget.take_work(_RC4_WORK * len(stream))
    return b"".join(
        _rc4(stream[at : at + _BOOK_BLOCK], key.of(at // _BOOK_BLOCK)) for at in range(0, len(stream), _BOOK_BLOCK)
    )


def _without_xor(stream: bytes, verifier: int, budget: Budget) -> bytes:
    """Each byte: the key for it depends on its place in the stream and on the size of its record."""
    password = _PASSWORDS[0].encode("ascii")  # of Excel; PowerPoint's is longer than any that XOR has
    if _xor_verifier(password) != verifier:
        return b""
    budget.take_work(_XOR_WORK * len(stream))
    key, rotated = _xor_key(password), stream.translate(_ROTATED)
    plain, at = [], 0
    while at + 4 <= len(stream):
        budget.take_work(_RECORD_WORK)
        size = int.from_bytes(stream[at + 2 : at + 4], "little")
        plain.append(stream[at : at + 4])
        at += 4
        record = rotated[at : at + size]
        place = (at + size) % len(key)
        keys = (key * (len(record) // len(key) + 2))[place : place + len(record)]
        plain.append((int.from_bytes(record, "big") ^ int.from_bytes(keys, "big")).to_bytes(len(record), "big"))
        at += size
    return b"".join(plain) + stream[at:]


def _xor_verifier(password: bytes) -> int:
    """MS-OFFCRYPTO 2.3.7.1, in 15 bits."""
    value = 0
    for byte in (*reversed(password), len(password)):
        value = (value << 1 & 0x7FFF | value >> 14) ^ byte
    return value ^ 0xCE4B


def _xor_key(password: bytes) -> bytes:
    """MS-OFFCRYPTO 2.3.7.2, already rotated as the data is. Sixteen bytes, for a password of fifteen."""
    mask, end, key = 0x8000, 0xFFFF, 0
    for byte in reversed(password):
        for bit in range(8):
            mask, end = _next_mask(mask), _next_mask(end)
            key ^= mask if byte >> bit & 1 and bit < 7 else 0
    low, high = (key ^ end).to_bytes(2, "little")
    mixed = bytes(byte ^ (high if at % 2 else low) for at, byte in enumerate(password + _XOR_FILL))
    return mixed[:_XOR_LENGTH].translate(_KEY_ROTATED)


def _next_mask(mask: int) -> int:
    mask = mask << 1 & 0xFFFF | mask >> 15
    return mask ^ 0x1020 if mask & 1 else mask


def _readable(stream: bytes, decrypted: bytes) -> bytes:
    """The beginning of each record is not encrypted, nor are some records, but all count for the key stream."""
    plain = bytearray(decrypted)
    at = 0
    while plain and at + 4 <= len(stream):
        kind, size = struct.unpack_from("<HH", stream, at)
        kept = 4 + (size if kind in _NOT_ENCRYPTED else 4 if kind == _BOUND_SHEET else 0)
        plain[at : at + kept] = stream[at : at + kept]
        if kind == _FILE_PASS:
            plain[at : at + 2] = b"\xff\xff"  # the records that follow can be read
        at += 4 + size
    return bytes(plain)


def _rc4(data: bytes, key: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) & 255
        state[i], state[j] = state[j], state[i]
    out, j = bytearray(), 0
    for number, byte in enumerate(data, 1):
        i = number & 255
        j = (j + state[i]) & 255
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) & 255])
    return bytes(out)
