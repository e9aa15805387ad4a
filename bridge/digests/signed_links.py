"""Links in digests: each allows its holder one action on one recipient's copy of one mail, until it expires.

Nothing is stored for a link. It carries the action, its expiry, the mail's id, the recipient and the person who gets
the link, and a message authentication code over all of it. The key file has one key per line: the first one signs, all
of them verify, so that links of older digests work until the key they were made with is removed. If this is wrong,
strangers get mail out of the quarantine.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bridge.errors import BridgeError, ConfigError
from bridge.runtime import durable_files

_PURPOSE = b"scanbridge link 1"
_KEY_LINE = re.compile(r"([0-9a-z]{8}) ([0-9]{1,12}) ([0-9a-f]{64,128})")  # id, Unix time it was made at, key
_TOKEN = re.compile(r"([A-Za-z0-9_-]{8,1200})\.([0-9a-z]{8})\.([A-Za-z0-9_-]{32})")
_MAX_FILE = 64 * 1024
_CODE_BYTES = 24


class Act(StrEnum):
    """What a link is for."""

    RELEASE = "release"
    REQUEST = "request"
    VIEW = "view"
    DELETE = "delete"
    BLOCK = "block"
    HAM = "ham"  # it is not spam
    SPAM = "spam"  # it is spam
    ENTER = "enter"  # sign in; without a mail
    UNSUBSCRIBE = "unsubscribe"  # without a mail


class LinkRefused(BridgeError):
    """The link is forged or expired; `why` is for the log, never for the reader."""

    def __init__(self, why: str, *, is_expired: bool = False) -> None:
        super().__init__(why)
        self.is_expired = is_expired


@dataclass(frozen=True, slots=True)
class Link:
    act: Act
    expires_at: int  # Unix time
    mail: str  # our id; "" if it is not about a mail
    recipient: str  # whose copy it is; without a mail, the person
    person: str = ""  # who got the link, if the recipient is an alias of theirs


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    made_at: int
    secret: bytes

    @property
    def line(self) -> str:
        return f"{self.id} {self.made_at} {self.secret.hex()}\n"


_CREATE = "run `scanbridge digest keys rotate` to create it"
_REPAIR = (
    "restore the file or its permissions, or remove it and run `scanbridge digest keys rotate`: "
    "links that were already sent then stop working"
)


def new_key() -> Key:
    return Key(secrets.token_hex(4), int(time.time()), secrets.token_bytes(32))


class LinkKeys:
    """The keys in a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._keys: tuple[Key, ...] = ()

    @property
    def keys(self) -> tuple[Key, ...]:
        """At least one, the signing key first. Raises ConfigError."""
        with self._lock:
            try:
                status = self.path.stat()
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    self._keys = parse_keys(durable_files.read(self.path, _MAX_FILE)[0].decode("ascii"))
                    self._seen = seen
            except (OSError, UnicodeDecodeError) as exc:
                why = getattr(exc, "strerror", None) or "not a key file"
                step = _CREATE if isinstance(exc, FileNotFoundError) else _REPAIR
                raise ConfigError(f"digests.key_file: {self.path}: {why}; {step}") from exc
            except ValueError as exc:
                raise ConfigError(f"digests.key_file: {self.path}: {exc}; {_REPAIR}") from exc
            return self._keys

    def make(self) -> None:
        """Create the file with a first key, unless it exists. Raises ConfigError."""
        if not self.path.exists():
            self._write((new_key(),))

    def rotate(self, keep_s: float) -> Key:
        """Sign with a new key from now on; older ones verify for as long as links last. Raises ConfigError.

        A key is no longer needed once the one after it is older than every link.
        """
        fresh, found = new_key(), self.keys
        oldest = time.time() - keep_s
        kept = [key for number, key in enumerate(found) if number == 0 or found[number - 1].made_at > oldest]
        self._write((fresh, *kept))
        return fresh

    def sign(self, link: Link) -> str:
        """The token for a URL. Raises ConfigError."""
        parts = [link.act, str(link.expires_at), link.mail, link.recipient]
        if link.person:
            parts.append(link.person)
        payload = "\n".join(parts).encode("utf-8", "surrogatepass")
        key = self.keys[0]
        return f"{_text(payload)}.{key.id}.{_text(_code(key, payload))}"

    def verify(self, token: str, now: float) -> Link:
        """Raises LinkRefused, or ConfigError if there are no keys."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise LinkRefused("not one of our links")
        key = next((key for key in self.keys if key.id == found[2]), None)
        if key is None:
            raise LinkRefused("signed with a key that is unknown or was removed", is_expired=True)
        try:
            payload, code = _bytes(found[1]), _bytes(found[3])
        except ValueError:
            raise LinkRefused("not one of our links") from None
        if not hmac.compare_digest(code, _code(key, payload)):
            raise LinkRefused("the code in the link is wrong")
        act, expires_at, mail, recipient, *person = payload.decode("utf-8", "surrogatepass").split("\n")
        if int(expires_at) < now:
            raise LinkRefused("the link has expired", is_expired=True)
        return Link(Act(act), int(expires_at), mail, recipient, *person)

    def has_made(self, token: str) -> bool:
        """Whether we signed this token, even if it has expired. Raises ConfigError."""
        try:
            return bool(token) and self.verify(token, 0.0) is not None
        except LinkRefused:
            return False

    def _write(self, keys: tuple[Key, ...]) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)  # a rotation that was interrupted left it
            durable_files.write(new, (key.line.encode("ascii") for key in keys), lambda: None)
            durable_files.give_to_owner(new)
            new.replace(self.path)
            durable_files.sync_directory(self.path.parent)
        except OSError as exc:
            raise ConfigError(f"digests.key_file: {self.path}: {exc.strerror}") from exc


def parse_keys(text: str) -> tuple[Key, ...]:
    """Raises ValueError, which never quotes a key."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _KEY_LINE.fullmatch(line.strip())
        if found is None:
            raise ValueError(f"line {number} is not a key")
        keys.append(Key(found[1], int(found[2]), bytes.fromhex(found[3])))
    if not keys:
        raise ValueError("the file has no key")
    if len({key.id for key in keys}) != len(keys):
        raise ValueError("two keys have the same id")
    return tuple(keys)


def _code(key: Key, payload: bytes) -> bytes:
    return hmac.new(key.secret, _PURPOSE + b"\0" + payload, hashlib.sha256).digest()[:_CODE_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    """Raises ValueError; only the one spelling of each value is accepted."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(data) != text:
        raise ValueError("not in canonical form")
    return data
