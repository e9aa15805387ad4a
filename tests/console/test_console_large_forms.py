"""Forms and downloads that are large, many, slow or odd: one sender does not take the memory, the disk or the time."""

from __future__ import annotations

import encodings
import os
import select
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.requests import Request

from bridge.console.checks import Refused, read_form
from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from bridge.testing import until
from tests.console.console_kit import TENANT_A, Browser, World
from tests.console.held_kit import hold, send_file
from tests.console.test_console_attacks import peak_kb

MAIL = b"Subject: hello\r\n\r\nx\r\n"
MULTIPART = "multipart/form-data; boundary=B"
URLENCODED = "application/x-www-form-urlencoded"
PER_PERSON, DOWNLOADS = 5, 10  # at the same time


def form_request(content_type: str, body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    return Request({"type": "http", "method": "POST", "headers": headers, "app": None}, receive)


def part(name: str, content: bytes) -> bytes:
    return b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), content)


@pytest.mark.parametrize("quote", ["", '"'])
async def test_every_charset_that_a_stranger_named_stayed_in_memory(quote: str) -> None:
    """Python keeps the names of codecs that it does not know: 18 kB for each form, before any sign-in."""
    name = f"x{os.urandom(8).hex()}{'y' * 1000}"
    charset = f"charset={quote}{name}{quote}"
    with pytest.raises(Refused) as refused:
        await read_form(form_request(f"{MULTIPART}; {charset}", part("name", b"x") + b"--B--"), 9999, 9)
    assert refused.value.status == 400
    form = await read_form(form_request(f"{URLENCODED}; {charset}", b"List-Unsubscribe=One-Click"), 9999, 9)
    assert form.texts == {"List-Unsubscribe": ["One-Click"]}  # mail programs name a charset
    assert not [known for known in encodings._cache if str(known).startswith(name[:17])]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "charset",
    [
        "punycode", "idna", "utf-7", "utf-16", "unicode_escape", "latin-1", "utf-8x", '"utf-8; punycode"', '"punycode',
        'utf-8; charset="punycode"', "punycode; charset=utf-8", "utf-8;CharSet=punycode", ' "punycode"', "",
    ],
)  # fmt: skip
async def test_a_stranger_chose_a_codec_that_takes_long(charset: str) -> None:
    """A form of 64 KB in punycode stopped all pages for a quarter of a second."""
    with pytest.raises(Refused):
        await read_form(form_request(f"{MULTIPART}; charset={charset}", part("name", b"x") + b"--B--"), 9999, 9)


@pytest.mark.parametrize("kind", [MULTIPART, f"{MULTIPART}; charset=utf-8", f'{MULTIPART}; charset="UTF-8"'])
async def test_forms_are_utf_8(kind: str) -> None:
    form = await read_form(form_request(kind, part("name", "Jörg".encode()) + b"--B--"), 9999, 9)
    assert form.texts == {"name": ["Jörg"]}


# Memory


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [(URLENCODED, b"sender=" + b"%41" * 1_400_000, 413), (MULTIPART, part("sender", b"A" * 4_200_000) + b"--B--", 400)],
    ids=["percent encoding", "a text in place of a file"],
)
def test_one_form_without_a_file_took_eighty_times_its_size(
    shared: World, kind: str, body: bytes, status: int, is_announced: bool
) -> None:
    """A form that may have a file may be 50 MB, but not its text: 4 MB of it took 340 MB, from somebody who may look at
    the mail of one tenant."""
    browser = shared.console.signed_in(Role.VIEWER, frozenset({TENANT_A}))
    browser.get("/scan")
    before_kb = peak_kb(shared.console)
    if is_announced:
        assert browser.ask("POST", "/scan", body, Content_Type=kind).status == status
    else:
        with sending(shared, browser, kind, "Transfer-Encoding: chunked") as client:
            client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert answer(client) == status
    assert peak_kb(shared.console) - before_kb < 60 * 1024  # percent encoding: 340 MB, for 4 MB
    assert browser.get("/scan").status == 200


def test_a_form_with_a_file_has_few_fields(shared: World) -> None:
    """Each is in memory."""
    browser = shared.console.signed_in(Role.VIEWER)
    many = {f"field{number}": "x" for number in range(30)}
    assert send_file(browser, "/scan", "mail.eml", MAIL, **many).status == 400
    assert send_file(browser, "/scan", "mail.eml", MAIL).status == 200


# The disk


@contextmanager
def sending(world: World, browser: Browser, kind: str, *fields: str) -> Iterator[socket.socket]:
    """A form whose body has not come yet."""
    host = f"127.0.0.1:{world.console.port}"
    head = [
        "POST /scan HTTP/1.1", f"Host: {host}", f"Origin: http://{host}",
        f"Cookie: {SESSION_COOKIE}={browser.cookies[SESSION_COOKIE]}", f"Content-Type: {kind}", *fields,
    ]  # fmt: skip
    with socket.create_connection(("127.0.0.1", world.console.port), timeout=60) as client:
        client.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
        yield client


def answer(client: socket.socket) -> int:
    return int(client.recv(4096).split()[1])


def _answered(clients: list[socket.socket]) -> list[socket.socket]:
    return select.select(clients, [], [], 0)[0]


def test_one_person_filled_the_disk_with_forms_that_do_not_end(shared: World) -> None:
    """Each has a file of 50 MB on the disk for five minutes: one person could send 375 of them at a time."""
    slow, other = (shared.console.signed_in(Role.VIEWER, name=name) for name in ("slow", "patient"))
    with ExitStack() as stack:
        forms = [
            stack.enter_context(sending(shared, slow, MULTIPART, "Content-Length: 5000000"))
            for _ in range(PER_PERSON + 2)
        ]
        refused = until(lambda: found if len(found := _answered(forms)) == 2 else None, "those beyond the limit")
        assert [answer(client) for client in refused] == [429, 429]
        assert send_file(slow, "/scan", "mail.eml", MAIL).status == 429
        assert send_file(other, "/scan", "mail.eml", MAIL).status == 200
    until(lambda: send_file(slow, "/scan", "mail.eml", MAIL).status == 200, "their places to be free again")


@pytest.mark.long
def test_one_person_filled_the_disk_with_downloads_that_are_not_read(shared: World) -> None:
    """A zip is in a file until it has been read, and its reader may take a byte at a time."""
    content = b"Subject: large\r\n\r\n" + b64encode(os.urandom(9_000_000))
    path = f"/quarantine/{hold(shared.console.directory, 'UNREAD', content=content)}/download"
    slow, other = (shared.console.signed_in(Role.VIEWER, name=name) for name in ("sleeper", "reader"))
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{shared.console.port}\r\nConnection: close\r\n"
    request += f"Cookie: {SESSION_COOKIE}={slow.cookies[SESSION_COOKIE]}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(DOWNLOADS):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", shared.console.port))
            client.sendall(request.encode())
            assert client.recv(9).startswith(b"HTTP/1.1")  # it has begun
        assert slow.get(path).status == 429
        assert other.get(path).status == 200
    until(lambda: slow.get(path).status == 200, "their places to be free again")
