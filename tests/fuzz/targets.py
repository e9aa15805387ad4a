"""Fuzz targets: for each parser of untrusted bytes, a function that raises when a promise is broken.

A target takes the bytes exactly as the parser gets them, so a corpus file is a readable dialogue, mail or
answer. Where the network may split the bytes anywhere, the split points are derived from the bytes
themselves, so the same input always gives the same run.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bridge.config.model import Config
from bridge.errors import ConfigError, ProtocolError, Saturated, ScanError
from bridge.intake.milter import codec, protocol
from bridge.intake.smtp import paths, xforward
from bridge.intake.smtp.data import DataReader, Fault
from bridge.intake.smtp.line_buffer import LINE_LIMIT, LineBuffer, LineTooLong
from bridge.lists.errors import ListsMalformed
from bridge.lists.files import Format, show
from bridge.lists.ndjson import EntryReader
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.matching import spelling
from bridge.mime import encodings, readings, structure
from bridge.relay.client_replies import passed_on
from bridge.relay.reply_reader import ReplyReader, queue_id_in
from bridge.runtime.yaml_file import load
from bridge.scanner.answers import read_result, read_status
from bridge.scanner.dialects.allowed_changes import KINDS
from bridge.scanner.dialects.mta_hooks import HooksSettings, MtaHooks
from bridge.scanner.dialects.rspamd import Rspamd, RspamdSettings
from bridge.scanner.http import Answer, AnswerTooLarge, ConnectionLost, ScannerConnection
from bridge.service.analysis import clamav, rspamd
from bridge.service.analysis.engine import LimitReached
from bridge.service.responses import Refused
from bridge.service.scanning.parameters import parse_parameters
from bridge.service.scanning.upload import Upload
from bridge.service.settings import ServiceConfig
from tests.fuzz.targets_head import mail_head, proxy

Target = Callable[[bytes], object]
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LOOP = asyncio.new_event_loop()
_ALL_OF_RSPAMD, _ALL_OF_HOOKS = RspamdSettings(allowed=frozenset(KINDS)), HooksSettings(allowed=frozenset(KINDS))


def cut(data: bytes) -> Iterator[bytes]:
    """The bytes split as a network might deliver them; no piece is empty."""
    dice = Random(zlib.crc32(data))
    longest = dice.choice((1, 2, 7, 60, 5000) if len(data) < 600 else (60, 700, 5000))
    while data:
        size = dice.randint(1, longest)
        yield data[:size]
        data = data[size:]


# --- intake --------------------------------------------------------------------------------------


def intake_address(data: bytes) -> None:
    """A path is passed on unchanged or permanently refused; no control character gets through."""
    path = paths.parse_path(data, syntax="Syntax")
    if isinstance(path, Reply):
        assert 500 <= path.code < 600
        return
    assert path.address.encode() in data
    assert not CONTROL.search(path.address + "".join(path.as_sent))
    again = " ".join([f"<{path.address}>", *path.as_sent]).encode()
    assert paths.parse_path(again, syntax="Syntax") == path


def intake_data(data: bytes) -> None:
    """However it is split, only CRLF . CRLF ends a mail; dots are unstuffed; a bare CR, LF or NUL is refused."""
    spool = Spool(1 << 30, memory_per_mail=256)
    message = Message(spool)
    reader, rest = DataReader(message, None), None
    for piece in cut(data):
        rest = reader.feed(piece) if rest is None else rest + piece
    content = None if reader.fault or rest is None else b"".join(message.chunks())
    message.close()
    assert spool.in_use == 0
    head, end, after = (b"\r\n" + data).partition(b"\r\n.\r\n")
    assert rest == (after if end else None)
    if rest is not None:
        lines = (head + b"\r\n")[2:]
        is_bare = re.search(rb"\r(?!\n)|(?<!\r)\n|\0", lines) is not None
        assert reader.fault is (Fault.BARE if is_bare else None)
        assert is_bare or content == re.sub(rb"(?m)^\.", b"", lines)


def intake_inbox(data: bytes) -> None:
    """Lines end with CRLF only; a line that is too long is reported and uses no memory."""
    box = LineBuffer(_LOOP, lambda: None)
    got: list[bytes | None] = []
    for piece in cut(data):
        box.feed(piece)
        while True:
            try:
                line = box.take_line()
            except LineTooLong:
                got.append(None)
                continue
            if line is None:
                break
            got.append(line)
        assert len(box) <= LINE_LIMIT + 1
    *lines, _ = data.split(b"\r\n")
    assert got == [line if len(line) <= LINE_LIMIT else None for line in lines]


def intake_xforward(data: bytes) -> None:
    """Attributes are encodable text and addresses are valid, or the whole command is refused."""
    for names in (xforward.XFORWARD_NAMES, xforward.XCLIENT_NAMES):
        try:
            client = xforward.apply(Client(), data, names)
        except xforward.BadAttribute:
            continue
        for value in asdict(client).values():
            assert not isinstance(value, str) or value.encode().decode() == value
        assert client.address is None or ipaddress.ip_address(client.address)
        assert client.port is None or 0 <= client.port <= 65535


def intake_proxy(data: bytes) -> None:
    """See targets_head.py."""
    proxy([data], cut(data))


PARSERS: dict[int, Callable[[bytes], Any]] = {
    protocol.CONNECT: codec.parse_connect,
    protocol.MAIL: codec.parse_address,
    protocol.RCPT: codec.parse_address,
    protocol.MACRO: lambda data: codec.parse_macros(data[1:]),
    protocol.NEGOTIATE: lambda data: codec.encode_negotiation(codec.negotiate(data)),
    protocol.HEADER: codec.parse_strings,
}


def milter_codec(data: bytes) -> None:
    """However the bytes are split, the frames are the same, and each is read or gives a ProtocolError."""
    whole, pieces = _events([data]), _events(cut(data))
    if whole[-1:] != [None]:
        assert whole == pieces
    else:
        assert pieces[-1:] == [None] or _events([*cut(data), b"\0"])[-1:] == [None]  # at the next byte at the latest
    for event in pieces:
        if event is not None:
            try:
                found = PARSERS.get(event[0], codec.decode_text)(event[1])
            except ProtocolError:
                continue
            if event[0] in (protocol.MAIL, protocol.RCPT) and not isinstance(found, Reply):
                assert not CONTROL.search(found[0])
                text = " ".join((found[0], *found[1]))
                assert text.encode().decode() == text  # used in JSON and files; empty is the null sender


def _events(pieces: Any) -> list[tuple[int, bytes] | None]:
    """Complete events; a final None means ProtocolError."""
    decoder, events, body = codec.Decoder(), [], b""
    for piece in pieces:
        try:
            found = decoder.feed(piece)
        except ProtocolError:
            return [*events, None]
        for command, data in found:
            if command == protocol.BODY_PART:
                body += data
            elif command == protocol.BODY:
                events.append((command, body + data))
                body = b""
            else:
                events.append((command, data))
    return events


# --- next hop and scanner ------------------------------------------------------------------------


def next_hop_replies(data: bytes) -> None:
    """However the bytes are split, the replies are the same; a client gets a refusal in whole ASCII lines."""
    whole, pieces = _replies([data]), _replies(cut(data))
    assert whole == pieces
    for reply in whole:
        if reply is not None:
            queue_id_in(reply)
            said = passed_on(reply)
            assert said.code >= 400 and said.code not in (421, 521)
            assert re.fullmatch(rb"(%d-[\t -~]*\r\n)*%d [\t -~]*\r\n" % (said.code, said.code), said.to_bytes())


def _replies(pieces: Any) -> list[Reply | None]:
    """Complete replies; a final None means ProtocolError."""
    reader: ReplyReader = ReplyReader()
    replies: list[Reply | None] = []
    try:
        for piece in pieces:
            for reply in reader.feed(piece):
                replies.append(reply)
    except ProtocolError:
        replies.append(None)
    return replies


MAX_ANSWER = 2000
TOKEN = "0123456789abcdef"


class _Wire(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        self.over = True

    over = False


def scanner_answer(data: bytes) -> Answer | AnswerTooLarge | ConnectionLost:
    """Any bytes, however split, give an answer within its limit or a named error, then a decision or a named error."""
    whole, pieces = _LOOP.run_until_complete(_answer([data])), _LOOP.run_until_complete(_answer(cut(data)))
    if not isinstance(whole, AnswerTooLarge | ConnectionLost) or not isinstance(
        pieces, AnswerTooLarge | ConnectionLost
    ):
        assert whole == pieces
    if isinstance(whole, Answer):
        assert len(whole.body) <= MAX_ANSWER
        readers = [partial(read_result, "url", token=TOKEN), partial(read_status, "url")]
        for dialect in (Rspamd("http://url", TOKEN, _ALL_OF_RSPAMD), MtaHooks("http://url", TOKEN, _ALL_OF_HOOKS)):
            dialect.status(b"id")  # the question that the answer belongs to
            readers += [dialect.result, dialect.read_status]
        for read in readers:
            try:
                read(answer=whole)
            except (ScanError, Saturated):
                pass
            else:
                assert whole.status == 200 or (whole.status == 204 and read == dialect.result)
    return whole


async def _answer(pieces: Any) -> Answer | AnswerTooLarge | ConnectionLost:
    connection, transport = ScannerConnection(MAX_ANSWER), _Wire()
    connection.connection_made(transport)
    answer = connection.ask([], asyncio.get_running_loop().time() + 600)
    await asyncio.sleep(0)  # the request is sent at the end of this loop iteration
    for piece in pieces:
        if not transport.over and not answer.done():
            connection.data_received(piece)
    if not transport.over:
        connection.eof_received()
    connection.connection_lost(None)
    try:
        return await answer
    except (AnswerTooLarge, ConnectionLost) as exc:
        return exc


# --- lists ---------------------------------------------------------------------------------------


def lists_ndjson(data: bytes) -> None:
    """However the bytes are split: the same entries, or ListsMalformed; every format can represent an entry."""
    whole, pieces = _entries([data]), _entries(cut(data))
    assert whole == pieces
    for kind in Format:
        assert show(whole or [], kind).encode().decode() is not None


def _entries(pieces: Any) -> list[Any] | None:
    reader, found = EntryReader(), []
    try:
        for piece in pieces:
            found += reader.feed(piece)
        return found + reader.end()
    except ListsMalformed:
        return None


def list_spelling(data: bytes) -> None:
    """Normalising is idempotent: a stored entry can be stored again without change."""
    text = data.decode("utf-8", "surrogateescape" if data[:1] == b"\xed" else "replace")
    for category in spelling._NORMALISERS:
        try:
            once = spelling.normalise(category, text)
        except ValueError:
            continue
        assert once.encode() and not CONTROL.search(once)
        assert spelling.stored(category, once) == once, (category, once)
        assert category in ("sender", "domain") or once.isascii(), (category, once)


# --- the service ---------------------------------------------------------------------------------


def service_structure(data: bytes) -> None:
    """Any bytes give parts that lie within them, or reach a bound."""
    try:
        for part in structure.walk(data, structure.Bounds(parts=200, depth=10, header_bytes=4096)):
            assert 0 <= part.body <= part.end <= len(data)
            encodings.decode(data[part.body : part.end], part.encoding)
            assert (part.filename + part.content_type).encode("utf-8", "replace")
    except structure.TooMuch:
        pass


def service_readings(data: bytes) -> None:
    """Any bytes can be read in every way, within the budget."""
    try:
        for content, _ in readings.objects(data, readings.Budget(len(data))):
            assert content
    except structure.TooMuch:
        pass


BOUNDARY = b"multipart/form-data; boundary=b"
UPLOAD = (
    b'--b\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
    b'{"borderMtaData": {"envelopeFrom": "", "envelopeRecipients": ["c@d"]}}\r\n'
    b'--b\r\nContent-Disposition: form-data; name="email"\r\n\r\nSubject: x\r\n\r\nx\r\n--b--\r\n'
)


def service_upload(data: bytes) -> None:
    """However it is split, a body is a request with its mail, or is refused; the mail is a slice of the body."""
    whole, pieces = _upload([data], BOUNDARY), _upload(list(cut(data)), BOUNDARY)
    assert whole == pieces
    request, mail = whole
    if not isinstance(request, str):
        assert b"\r\n\r\n" + mail + b"\r\n--b" in data
        assert request.to_json()


def service_content_type(data: bytes) -> None:
    """Whatever the header says, the body is read or refused; it is read only with its own boundary."""
    request, mail = _upload([UPLOAD], data)
    assert isinstance(request, str) or mail == b"Subject: x\r\n\r\nx"


def _upload(pieces: list[bytes], content_type: bytes) -> tuple[Any, bytes]:
    """The request, or the name of the refusal; and the mail."""
    spool = Spool(1 << 30, memory_per_mail=256)
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    events.append({"type": "http.request", "body": b"", "more_body": False})
    upload, todo = Upload(spool, parse_parameters), iter(events)

    async def receive() -> Any:
        return next(todo)

    try:
        request: Any = _LOOP.run_until_complete(upload.read(receive, content_type))
        return request, b"".join(upload.mail.chunks())
    except Refused as exc:
        assert 400 <= exc.status < 500, exc
        return exc.failure.error, b""
    finally:
        upload.close()
        assert spool.in_use == 0


# --- configuration -------------------------------------------------------------------------------


def engine_answers(data: bytes) -> None:
    """Answers of clamd and rspamd give findings with clean tags, or a named error."""
    for read in (clamav.read_answer, lambda answer: rspamd.read_answer(answer, 8.0)):
        try:
            found = read(data)
        except (clamav.ClamdError, rspamd.RspamdError, LimitReached):
            continue
        assert all(re.fullmatch(r"[\x21-\x7e]{1,300}", tag) for tag in found.tags), found


def configuration(data: bytes) -> None:
    """Any file gives a configuration, or a ConfigError whose every line names the file and a line number."""
    text = data.decode("utf-8", "replace")
    for model in (Config, ServiceConfig):
        try:
            load(Path("/etc/x.yml"), model, text)
        except ConfigError as exc:
            for line in str(exc).split("\n"):
                assert re.match(r"/etc/x\.yml:[1-9]\d*: .", line), line
            assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in str(exc) if c != "\n"), str(exc)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        *(intake_address, intake_data, intake_inbox, intake_xforward, intake_proxy, mail_head, milter_codec),
        *(next_hop_replies, scanner_answer, lists_ndjson, list_spelling),
        *(service_structure, service_readings, service_upload, service_content_type, engine_answers, configuration),
    )
}

CORPUS = Path(__file__).parent / "corpus"


def seeds(name: str) -> list[bytes]:
    """The target's corpus, sorted by file name."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
