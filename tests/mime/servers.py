"""Readers that are servers: a private Dovecot and a private clamd."""

from __future__ import annotations

import atexit
import binascii
import contextlib
import os
import re
import selectors
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mime.reader import EICAR, TIMEOUT_S, Found, Hung, Missing, Reader, end_process, find_program, new_directory


class Dovecot(Reader):
    """Dovecot's view of the structure, which every IMAP client is shown; parts as it decodes them (BINARY)."""

    name = "dovecot"

    def __init__(self) -> None:
        self._imap = "/usr/lib/dovecot/imap"
        doveconf = find_program("doveconf", "dovecot-core")
        if not Path(self._imap).exists():
            raise Missing("imap not installed (Debian: dovecot-imapd)")
        self._home = new_directory()
        self._uid, self._gid = (65534, 65534) if os.geteuid() == 0 else (os.getuid(), os.getgid())  # root may not
        os.chown(self._home, self._uid, self._gid)
        config = self._home / "dovecot.conf"
        config.write_text(_DOVECOT.format(home=self._home, uid=self._uid, gid=self._gid))
        if subprocess.run([doveconf, "-c", config], capture_output=True, check=False).returncode:
            raise Missing("Dovecot refuses the configuration of this test")
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.read_one(b"Subject: x\r\n\r\nx\r\n")

    def read_one(self, mail: bytes) -> list[Found]:
        mail = re.sub(rb"\r?\n", b"\r\n", mail)  # as a client would upload it, or an MTA deliver it
        try:
            return self._read(mail)
        except (OSError, Hung):
            self._stop()
            return []

    def _read(self, mail: bytes) -> list[Found]:
        self._start()
        if b" OK" not in self._tell(b"a APPEND INBOX {%d+}\r\n%s\r\n" % (len(mail), mail)):
            return []
        answer = self._tell(b"a FETCH * BODYSTRUCTURE\r\n")
        begin = answer.find(b"BODYSTRUCTURE ")
        found = []
        for section, kind, name, encoding in _sections(_parse_list(answer, begin + 14) if begin >= 0 else []):
            found.append(Found(self._section(section, encoding), name, kind))
        self._tell(b"a STORE 1:* +FLAGS.SILENT \\Deleted\r\na EXPUNGE\r\n", ends=2)
        return found

    def _section(self, section: str, encoding: str) -> bytes:
        """Decoded by the server, or, if it refuses, by a client that believes the server's name of the encoding."""
        content = _literal(self._tell(f"a FETCH * BINARY.PEEK[{section}]\r\n".encode()))
        if content is not None:
            return content
        content = _literal(self._tell(f"a FETCH * BODY.PEEK[{section}]\r\n".encode())) or b""
        with contextlib.suppress(binascii.Error):
            if encoding == "base64":
                return binascii.a2b_base64(content)
            if encoding == "quoted-printable":
                return binascii.a2b_qp(content)
        return content

    def _start(self) -> None:
        if self._process is not None:
            return
        environment = {"USER": "reader", "HOME": str(self._home), "PATH": os.environ.get("PATH", "")}
        shutil.rmtree(self._home / "mail", ignore_errors=True)
        self._process = subprocess.Popen(
            [self._imap, "-c", str(self._home / "dovecot.conf")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            user=self._uid if os.geteuid() == 0 else None,
            group=self._gid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        self._buffer = b""
        self._until(re.compile(rb"(?m)^\* PREAUTH .*\r\n"))
        self._tell(b"a SELECT INBOX\r\n")

    def _tell(self, command: bytes, ends: int = 1) -> bytes:
        """Send a command and return everything up to its tagged answer."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(command)
        self._process.stdin.flush()
        return b"".join(self._until(_TAGGED) for _ in range(ends))

    def _until(self, wanted: re.Pattern[bytes]) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        end = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (match := wanted.search(self._buffer, _after_literals(self._buffer))) is None:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Hung("no answer")
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise Hung("ended")
                self._buffer += piece
        answer, self._buffer = self._buffer[: match.end()], self._buffer[match.end() :]
        return answer

    def _stop(self) -> None:
        if self._process is not None:
            end_process(self._process)
            self._process = None

    def close(self) -> None:
        self._stop()
        shutil.rmtree(self._home, ignore_errors=True)


_TAGGED = re.compile(rb"(?m)^a (?:OK|NO|BAD)[^\r\n]*\r\n")
_LITERAL = re.compile(rb"~?\{(\d+)\}\r\n")
_DOVECOT = """
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/log
mail_location = maildir:{home}/mail
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = 0
first_valid_gid = 0
default_internal_user = root
default_login_user = root
default_internal_group = root
ssl = no
mail_fsync = never
"""


def _after_literals(answer: bytes) -> int:
    """Where the text after the last literal begins: its content may look like an answer."""
    at = 0
    while (match := _LITERAL.search(answer, at)) is not None:
        at = match.end() + int(match.group(1))
        if at > len(answer):
            return len(answer)
    return at


def _literal(answer: bytes) -> bytes | None:
    match = _LITERAL.search(answer)
    if match is None:
        short = re.search(rb'\] "((?:[^"\\]|\\.)*)"', answer)
        return re.sub(rb"\\(.)", rb"\1", short.group(1)) if short else None
    return answer[match.end() : match.end() + int(match.group(1))]


def _parse_list(answer: bytes, at: int) -> Any:
    """An IMAP parenthesised list as nested Python lists of text and None."""
    stack: list[list[Any]] = [[]]
    while at < len(answer):
        char = answer[at : at + 1]
        match = _LITERAL.match(answer, at)
        if char == b"(":
            stack.append([])
            at += 1
        elif char == b")":
            done = stack.pop()
            stack[-1].append(done)
            at += 1
            if len(stack) == 1:
                return done
        elif char == b'"':
            text = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL).match(answer, at)
            if text is None:
                return []
            stack[-1].append(re.sub(rb"\\(.)", rb"\1", text.group(1)).decode("utf-8", "replace"))
            at = text.end()
        elif match is not None:
            at = match.end() + int(match.group(1))
            stack[-1].append(answer[match.end() : at].decode("utf-8", "replace"))
        elif char in b" \r\n":
            at += 1
        else:
            atom = re.compile(rb"[^\s()]+").match(answer, at)
            assert atom is not None
            stack[-1].append(None if atom.group() == b"NIL" else atom.group().decode())
            at = atom.end()
    return []


def _sections(body: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Section number, type, file name and encoding of every leaf of a BODYSTRUCTURE."""
    if not body:
        return
    if isinstance(body[0], list):  # multipart
        for number, child in enumerate((item for item in body if _is_body(item)), 1):
            yield from _sections(child, f"{prefix}{number}.")
        return
    kind = f"{body[0]}/{body[1]}".lower()
    section = prefix.rstrip(".") or "1"
    yield section, kind, _parameter(body, ("filename", "name")), str(body[5] or "").lower()
    if kind == "message/rfc822" and len(body) > 8 and isinstance(body[8], list):
        inner = body[8]
        yield from _sections(inner, f"{section}." if isinstance(inner[0], list) else f"{section}.1.")


def _is_body(item: Any) -> bool:
    if not isinstance(item, list) or not item:
        return False
    return isinstance(item[0], list) or (len(item) >= 7 and isinstance(item[0], str) and isinstance(item[1], str))


def _parameter(body: Any, names: tuple[str, ...]) -> str:
    flat = [item for item in body if isinstance(item, list)]
    flat += [inner for item in flat for inner in item if isinstance(inner, list)]
    for wanted in names:
        for item in flat:
            for key, value in zip(item[::2], item[1::2], strict=False):
                if isinstance(key, str) and key.lower().startswith(wanted) and isinstance(value, str):
                    return value
    return ""


class Clamav(Reader):
    """clamd with one signature: whether it finds EICAR. It shows no parts, so what it found is all it returns."""

    name = "clamav"

    def __init__(self) -> None:
        clamd = find_program("clamd", "clamav-daemon")
        self._home = new_directory()
        (self._home / "db").mkdir()
        (self._home / "db" / "eicar.ndb").write_text(f"Eicar-Test:0:*:{EICAR.hex()}\n")
        self._socket = self._home / "socket"
        config = self._home / "clamd.conf"
        config.write_text(
            f"DatabaseDirectory {self._home / 'db'}\nLocalSocket {self._socket}\nForeground yes\nUser root\n"
            f"LogFile {self._home / 'log'}\nTemporaryDirectory {self._home}\n"
        )
        if os.geteuid() != 0:
            config.write_text(config.read_text().replace("User root\n", ""))
        self._process = subprocess.Popen(
            [clamd, "-c", str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self._process.kill)
        end = time.monotonic() + 60
        while not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise Missing("clamd does not start")
            time.sleep(0.05)

    def read_one(self, mail: bytes) -> list[Found]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(self._socket))
            connection.sendall(b"zINSTREAM\0" + struct.pack(">I", len(mail)) + mail + struct.pack(">I", 0))
            answer = connection.recv(4096)
        return [Found(EICAR, "eicar")] if b"FOUND" in answer else []

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)
