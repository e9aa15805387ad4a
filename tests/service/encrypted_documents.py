"""Documents encrypted as Office encrypts them (MS-OFFCRYPTO): no free program writes all of these forms."""

from __future__ import annotations

import base64
import hashlib
import struct

from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.service.test_service_documents import ole

SALT, SECRET, NUMBER = bytes(range(16)), bytes(range(32, 64)), bytes(range(64, 80))
INPUT, VALUE, KEY = (bytes.fromhex(text) for text in ("fea7d2763b4b9e79", "d7aa0f6d3061344e", "146e0be7abacd0d6"))


def padded(content: bytes, size: int = 16) -> bytes:
    return content + bytes(-len(content) % size)


def encrypt(content: bytes, key: bytes, initial: bytes | None = None) -> bytes:
    mode = modes.ECB() if initial is None else modes.CBC(initial)  # what the format demands
    worker = Cipher(algorithms.AES(key), mode).encryptor()
    return worker.update(padded(content)) + worker.finalize()


def rc4(content: bytes, key: bytes) -> bytes:
    return Cipher(ARC4(key), mode=None).encryptor().update(content)


def agile(content: bytes, password: str, *, spins: int = 1000) -> bytes:
    """As Office 2010 and later, which hash a password 100,000 times."""
    new = hashlib.sha512
    hashed = new(SALT + password.encode("utf-16-le")).digest()
    for number in range(spins):
        hashed = new(struct.pack("<I", number) + hashed).digest()
    parts = ((INPUT, NUMBER), (VALUE, new(NUMBER).digest()), (KEY, SECRET))
    given, value, key = (
        base64.b64encode(encrypt(text, new(hashed + block).digest()[:32], SALT)).decode() for block, text in parts
    )
    salt = base64.b64encode(SALT).decode()
    about = f'saltSize="16" blockSize="16" keyBits="256" hashSize="64" cipherAlgorithm="AES" saltValue="{salt}"'
    xml = (
        f'<encryption><keyData {about} hashAlgorithm="SHA512"/><keyEncryptors><keyEncryptor>'
        f'<p:encryptedKey spinCount="{spins}" {about} hashAlgorithm="SHA512" encryptedVerifierHashInput="{given}" '
        f'encryptedVerifierHashValue="{value}" encryptedKeyValue="{key}"/></keyEncryptor></keyEncryptors></encryption>'
    )
    segments = b"".join(
        encrypt(content[at : at + 4096], SECRET, new(SALT + struct.pack("<I", at // 4096)).digest()[:16])
        for at in range(0, len(content), 4096)
    )
    info = b"\4\0\4\0\x40\0\0\0" + xml.encode()
    return ole({"EncryptionInfo": info, "EncryptedPackage": struct.pack("<Q", len(content)) + segments})


def standard(content: bytes, password: str) -> bytes:
    """As Office 2007."""
    hashed = hashlib.sha1(SALT + password.encode("utf-16-le")).digest()
    for number in range(50_000):
        hashed = hashlib.sha1(struct.pack("<I", number) + hashed).digest()
    hashed = hashlib.sha1(hashed + bytes(4)).digest()
    key = hashlib.sha1(bytes(0x36 ^ byte for byte in hashed.ljust(64, b"\0"))).digest()[:16]
    header = struct.pack("<8I", 0x24, 0, 0x660E, 0x8004, 128, 24, 0, 0) + b"A\0\0\0"
    verifier = struct.pack("<I", 16) + SALT + encrypt(NUMBER, key)
    verifier += struct.pack("<I", 20) + encrypt(hashlib.sha1(NUMBER).digest().ljust(32, b"\0"), key)
    info = b"\4\0\2\0" + struct.pack("<II", 0x24, len(header)) + header + verifier
    return ole({"EncryptionInfo": info, "EncryptedPackage": struct.pack("<Q", len(content)) + encrypt(content, key)})


def workbook(records: list[tuple[int, bytes]], password: str, *, is_new: bool) -> bytes:
    """The records of an old workbook after its first one, in RC4 as Excel 97 writes it, or as later ones do."""
    wide = password.encode("utf-16-le")
    if is_new:
        start, new, size = hashlib.sha1(SALT + wide).digest(), hashlib.sha1, 16
    else:
        start = hashlib.md5((hashlib.md5(wide).digest()[:5] + SALT) * 16).digest()[:5]
        new, size = hashlib.md5, 16

    def key(block: int) -> bytes:
        return new(start + struct.pack("<I", block)).digest()[:size]

    verifier = rc4(NUMBER + new(NUMBER).digest(), key(0))
    about = struct.pack("<HHH", 1, 1, 1) + SALT + verifier
    if is_new:
        header = struct.pack("<8I", 4, 0, 0x6801, 0x8004, 128, 1, 0, 0) + b"\0\0"
        about = struct.pack("<HHHII", 1, 2, 2, 4, len(header)) + header
        about += struct.pack("<I", 16) + SALT + verifier[:16] + struct.pack("<I", 20) + verifier[16:]
    first, *rest = records
    plain = [first, (0x2F, about), *rest]
    stream = b"".join(struct.pack("<HH", kind, len(data)) + data for kind, data in plain)
    coded = b"".join(rc4(stream[at : at + 1024], key(at // 1024)) for at in range(0, len(stream), 1024))
    out, at = b"", 0
    for kind, data in plain:
        kept = 4 + (len(data) if kind in (0x809, 0x2F) else 4 if kind == 0x85 else 0)
        out += stream[at : at + kept] + coded[at + kept : at + 4 + len(data)]
        at += 4 + len(data)
    return ole({"Workbook": out})


# What Excel makes of "VelvetSweatshop" (MS-OFFCRYPTO 2.3.7): the key, its hash, and what each byte is combined with.
XOR_KEY, XOR_HASH = 0xB359, 0x9A0A
XOR_BYTES = bytes.fromhex("876b9ae21ee305621e699660986e9404")


def workbook_in_xor(records: list[tuple[int, bytes]], *, verifier: int = XOR_HASH, is_old: bool = False) -> bytes:
    """The same, obfuscated as Excel 97 can write it, or as earlier ones do."""
    about = struct.pack("<HH", XOR_KEY, verifier)
    first, *rest = records
    out = b""
    for kind, data in [first, (0x2F, about if is_old else b"\0\0" + about), *rest]:
        kept = len(data) if kind in (0x809, 0x2F) else 4 if kind == 0x85 else 0
        place = len(out) + 4 + len(data)
        coded = bytes(
            (byte << 5 | byte >> 3) & 0xFF ^ XOR_BYTES[(place + number) % 16] for number, byte in enumerate(data)
        )
        out += struct.pack("<HH", kind, len(data)) + data[:kept] + coded[kept:]
    return ole({"Book" if is_old else "Workbook": out})
