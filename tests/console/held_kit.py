"""Mail in the quarantine of a console's tests: put there directly, by the code of the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.runtime.database import Database
from tests.console.console_kit import TENANTS, Answer, Browser

CONTENT = b"From: John <john@client.example>\r\nSubject: hello\r\n\r\nDear Jane,\r\nthis is the text.\r\n"


def run(work: Coroutine[Any, Any, object]) -> None:
    """In a separate thread: while a browser is open, playwright's event loop runs in the thread of the test."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@contextmanager
def quarantine(directory: Path) -> Iterator[Quarantine]:
    """That of the configuration in this directory."""
    tenants = {domain: str(tenant["uid"]) for tenant in TENANTS for domain in tenant["recipient_domains"]}
    state = directory / "state"
    place = QuarantineSettings(state / "quarantine", Database.file(state / "state.sqlite"), tenant_by_domain=tenants)
    place.directory.mkdir(exist_ok=True)
    opened = Quarantine(place)
    try:
        yield opened
    finally:
        run(opened.close())


def hold(directory: Path, mail_id: str, *about: Any, **facts: Any) -> str:
    """Put a mail into the quarantine, as `holding` does."""
    with holding(directory) as put:
        return put(mail_id, *about, **facts)


@contextmanager
def holding(directory: Path) -> Iterator[Callable[..., str]]:
    """What puts a mail into the quarantine and returns its id, for many: opening it takes longer than that."""
    with quarantine(directory) as opened:
        yield partial(_put, opened)


def _put(
    opened: Quarantine, mail_id: str, recipient: str = "jane@a.example", content: bytes = CONTENT,
    sender: str = "john@client.example", **facts: Any,
) -> str:  # fmt: skip
    known = {"decision": "quarantine", "verdict": "spam", "tags": ["spam:bulk"], "reason": "quarantine", **facts}
    with closing(Message(Spool(1 << 30))) as message:
        message.write(content)
        now = time.monotonic()
        client = Client("192.0.2.7", "client.example")
        envelope = Envelope(sender, (Recipient(recipient),))
        tx = Transaction(mail_id, Session("s1", "mx", "127.0.0.1", client), envelope, message, now, now + 60)
        run(opened.keep(tx, b"X-Scan-Id: 1\r\n", known))
    return mail_id


def held_ids(directory: Path) -> set[str]:
    return {path.stem for path in (directory / "state" / "quarantine").glob("*.eml")}


def send_file(browser: Browser, path: str, name: str, content: bytes, **fields: str) -> Answer:
    """A form with a file."""
    boundary = b"boundary-of-the-form"
    parts = b""
    for field, value in {"form_token": browser.token, **fields}.items():
        parts += b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (
            boundary, field.encode(), value.encode(),
        )  # fmt: skip
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    parts += b"--%b\r\n%b%b\r\n--%b--\r\n" % (boundary, head, content, boundary)
    return browser.ask("POST", path, parts, Content_Type=f"multipart/form-data; boundary={boundary.decode()}")
