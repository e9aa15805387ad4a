"""For tests of events: mails, a webhook receiver that can misbehave, an outbox with a recorder and a delivery."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from bridge.api.scanning import AnalysisResult, Decision
from bridge.events.delivery import Delivery, DeliverySettings, SinkPlan
from bridge.events.event import EventType
from bridge.events.outbox import Entry, Limit, Outbox
from bridge.events.recorder import Plan, Recorder, RecorderSettings
from bridge.events.sinks.sink import Sink
from bridge.events.sinks.webhook import WebhookSettings, WebhookSink
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id
from bridge.runtime.database import Database
from bridge.testing import free_port, whole_lines

ALL = frozenset(str(type_) for type_ in EventType)
ROOMY = Limit(1_000_000, 1 << 30)
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ...").decode()


def mail(action: Action = Action.RELAY, mail_id: str = "", recipients: Sequence[str] = ("b@example.org",)) -> Record:
    session = Session("S1", "mx", "127.0.0.1", Client("192.0.2.7", helo="mx.example", ident="Q1"))
    envelope = Envelope("a@client.example", tuple(map(Recipient, recipients)))
    tx = Transaction(mail_id or new_id(), session, envelope, Message(Spool(10)), 0.0, 1.0)
    code, status = {Action.REJECT: (550, "5.7.1"), Action.TEMPFAIL: (451, "4.7.1")}.get(action, (250, "2.0.0"))
    outcome = Outcome(action, Reply(code, status, "text"), AnalysisResult(Decision.DELIVER, "g1", "clean", ("a:b",)))
    record = Record(tx, 100, None, outcome, rule="policy.deliver", message_id="<m1@client.example>")
    record.is_kept = action is Action.QUARANTINE
    return record


def entry(sink: str = "s", about: str = "m1", event_id: str = "", body: bytes = b"{}") -> Entry:
    return Entry(sink, event_id or os.urandom(8).hex(), str(EventType.DECIDED), about, time.time(), body)


class Lost(Counter[tuple[str, str]]):
    """What a recorder has reported as lost, by sink and reason."""

    def __call__(self, sink: str, reason: str, number: int) -> None:
        self[sink, reason] += number


def recorder(place: Database, lost: Lost, limit: Limit = ROOMY, *, wait_s: float = 0.5, **settings: Any) -> Recorder:
    plans = (Plan("s", ALL, limit),)
    return Recorder(RecorderSettings(plans, "bridge.example", **settings), Outbox(place, wait_s), on_lost=lost)


Answer = Callable[["Receiver", dict[str, Any]], int | None]  # None: the connection is closed without an answer


class Receiver:
    """A webhook that verifies every signature with the reference library, and answers as it is told."""

    def __init__(self) -> None:
        self.port = free_port()
        self.events: list[dict[str, Any]] = []  # those it has answered with 200, in order of their arrival
        self.requests: list[tuple[float, dict[str, Any]]] = []  # all, with the time
        self.answer: Answer = lambda receiver, event: 200
        self.headers: dict[str, str] = {}
        self.let_go = threading.Event()  # ends a hanging answer
        self._server: ThreadingHTTPServer | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                event = Webhook(SECRET).verify(body, dict(self.headers.items()))  # raises if it is forged
                receiver.requests.append((time.monotonic(), event))
                status = receiver.answer(receiver, event)
                if status is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if status == 200:
                    with receiver._lock:
                        receiver.events.append(event)
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """A client that went away is part of the tests."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.let_go.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def webhook(receiver: Receiver, timeout_s: float = 5.0) -> Callable[[], Sink]:
    secret = base64.b64decode(SECRET.removeprefix("whsec_"))
    return lambda: WebhookSink(WebhookSettings(receiver.url, (secret,), timeout_s))


@contextmanager
def delivering(
    place: Database, create: Callable[[], Sink], *, is_ocsf: bool = False, max_attempts: int = 12
) -> Iterator[Delivery]:
    """Impatient: all pauses are short."""
    plans = (SinkPlan("s", create, is_ocsf, max_attempts),)
    settings = DeliverySettings(plans, first_pause_s=0.05, longest_pause_s=0.5, aside_s=0.1, longest_aside_s=0.5)
    delivery = Delivery(settings, Outbox(place))
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.close()


def waiting(place: Database) -> int:
    outbox = Outbox(place)
    try:
        return sum(state.waiting for state in outbox.states())
    finally:
        outbox.close()


def put(place: Database, *entries: Entry) -> None:
    outbox = Outbox(place)
    outbox.add(entries, {one.sink: ROOMY for one in entries})
    outbox.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(path)]
