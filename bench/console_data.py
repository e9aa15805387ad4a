"""What the console is measured with: a full history, a full quarantine, a long list and a long audit log.

Everything is put there by the code that writes it in production, except for the `fsync` of each quarantined mail.
Half of the mail belongs to no tenant, most of the rest to one, and a few old mails to a third: for people of a small
tenant, a page has to be found among the mail of all others.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert

from bench.history import BATCH, DAYS, mail
from bridge.console import database as tables
from bridge.console.database import FILE, ConsoleStore
from bridge.history.sqlite import SqliteHistory
from bridge.lists import ListClient, ListEntry, ListSettings
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from bridge.quarantine import record
from bridge.quarantine.index import Index
from bridge.quarantine.record import StoredRecord
from bridge.runtime.database import Database
from bridge.testing import free_port

LARGE, MIDDLE, SMALL = (f"{digit * 8}-1111-4111-8111-{digit * 12}" for digit in "123")
LIVE = 38_000  # a live segment may have 40,000
_SPAM = ["spam:bulk", "link:list", "auth:spf:fail", "auth:dmarc:fail", "content:html"]
SERVICE = """listen: 127.0.0.1:{port}
database: sqlite:///service.sqlite
lists: [{{name: blocked, category: sender, maxSize: 10000000}}, {{name: partners, category: sender, maxSize: 1000}}]
"""


def tenant_of(number: int, total: int) -> str:
    """Of the mail with this number, counted from the oldest."""
    if number < total // 2 and number % (total // 20) == 7:
        return SMALL
    return ("", "", "", "", "", LARGE, LARGE, LARGE, LARGE, MIDDLE)[number % 10]


def fill_history(directory: Path, total: int) -> None:
    """Mails of 30 days, with ids as ours are: they begin with the time. The newest are in a segment without indexes."""
    history, total = SqliteHistory(directory), total + LIVE
    now, step = time.time(), DAYS * 86400 / total
    for first in range(0, total, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, total)):
            at = now - (total - number) * step
            kind, row = mail(number, at)
            kind = kind._replace(tenant=tenant_of(number, total))
            batch.append((kind, row._replace(id=mail_id(number, at))))
        history.append(batch)
    history.maintain(0.0, None)
    history.close()


def mail_id(number: int, at: float) -> str:
    return f"{int(at * 1000):011X}{number:08X}"


def fill_quarantine(state: Path, total: int) -> None:
    directory = state / "quarantine"
    directory.mkdir(parents=True, exist_ok=True)
    index = Index(Database.file(state / "state.sqlite"), busy_s=60)
    now, step = time.time(), DAYS * 86400 / total
    for first in range(0, total, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, total)):
            stored = quarantined(number, now - (total - number) * step, tenant_of(number, total))
            (directory / f"{stored.id}.eml").write_bytes(MAIL)
            (directory / f"{stored.id}.json").write_bytes(stored.metadata)
            batch.append(stored)
        index.put(batch)
    index.close()


def quarantined(number: int, at: float, tenant: str) -> StoredRecord:
    made = mail(number, at)[1]
    tags = [_SPAM[number % len(_SPAM)], _SPAM[number // 7 % len(_SPAM)], f"spam:score:{number % 20}"]
    facts: dict[str, object] = {"decision": "quarantine", "verdict": "spam", "tags": tags, "reason": "quarantine"}
    with closing(Message(Spool(1 << 20))) as message:
        message.write(f"Subject: {made.subject}\r\n\r\n".encode())
        session = Session(made.session, "mx", "127.0.0.1", Client(made.client, made.helo))
        envelope = Envelope(made.sender, (Recipient(made.recipients),))
        tx = Transaction(mail_id(number, at), session, envelope, message, 0.0, 0.0)
        about = json.loads(record.write(tx, b"", facts, tenant))
    about["time"] = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return StoredRecord(tx.id, json.dumps(about, indent=1).encode(), b"", at)


def fill_audit(state: Path, total: int) -> None:
    store = ConsoleStore(Database.file(state / FILE))
    now = time.time()
    for first in range(0, total, BATCH):
        rows = [
            {
                "at": now - total + number, "name": f"person{number % 40}", "role": "releaser", "address": "192.0.2.9",
                "action": ("searched mail", "requested a release", "signed in")[number % 3],
                "mail": mail_id(number, now) if number % 3 == 1 else "", "detail": f"recipient: r{number}@example.org",
                "result": "done",
            }
            for number in range(first, min(first + BATCH, total))
        ]  # fmt: skip
        with store.writing() as connection:
            connection.execute(insert(tables.audit), rows)
    store.close()


@contextmanager
def list_service(place: Path, entries: int) -> Iterator[str]:
    """The scanning service, with a list of `entries` entries; yields its address. Its key is in `place / "key"`."""
    directory = place / "service"
    is_new = not directory.exists()
    directory.mkdir(exist_ok=True)
    port = free_port()
    (directory / "service.yml").write_text(SERVICE.format(port=port))
    program = [sys.executable, "-m", "bridge", "service", "-c", str(directory / "service.yml")]
    if is_new:
        made = subprocess.run([*program, "apikey", "create", "bench"], capture_output=True, check=True)  # noqa: S603
        (place / "key").write_bytes(made.stdout)
    service = subprocess.Popen(program, stdout=subprocess.PIPE)  # noqa: S603
    try:
        assert service.stdout is not None
        service.stdout.readline()  # it prints its address once it listens
        url = f"http://127.0.0.1:{port}"
        if is_new:
            asyncio.run(_add(ListSettings(url, (place / "key").read_text().strip()), entries))
        yield url
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)


def entry(number: int) -> str:
    return f"user{number:07d}@example{number % 5000}.org"


async def _add(settings: ListSettings, count: int) -> None:
    async with ListClient(settings) as client:
        for tenant, total in ((None, count), (LARGE, count // 100)):
            await client.add("blocked", (ListEntry(entry(number), "benchmark") for number in range(total)), tenant)


def environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))}


MAIL = (
    b"From: Sender <u@example.org>\r\nSubject: held\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: text/html; charset=utf-8\r\n\r\n<p>Dear <b>customer</b>,</p>" + b"<p>words of a mail</p>\r\n" * 200
)
