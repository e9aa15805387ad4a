"""Attacks by strangers and by signed-in users, to gain more access or to block the console for others."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from sqlalchemy import delete

from bridge.console import database
from bridge.console.audit import Audit, AuditEntry
from bridge.console.guard import FORM_COOKIE, SESSION_COOKIE
from bridge.console.roles import Role
from bridge.console.routes import ROUTES
from bridge.console.sessions import SessionLimits, Sessions
from bridge.console.sign_in_attempts import MAX_PER_ADDRESS, Attempts
from bridge.console.tokens import form_token
from bridge.console.undoable_jobs import Action, Job, Jobs, State, TooManyJobs
from bridge.console.users import Users
from bridge.testing import eventually, free_port, until
from tests.console.console_kit import PASSWORD, TENANT_A, TENANT_B, ConsoleProcess, World, console_process
from tests.console.held_kit import held_ids, hold
from tests.console.test_console_quarantine import wait_for_jobs
from tests.daemon.process_kit import write_config
from tests.requirements import library

HOST = "mail.example.org"
SECRET = "of a form"
FORM_S = 2  # how long the console waits for one
FEW = 5


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console behind a reverse proxy, without a daemon."""
    for name in ("argon2", "authlib", "jinja2", "nh3", "pyzipper"):
        library(name, "console")
    port = free_port()
    section = {"address": f"127.0.0.1:{port}", "public_url": f"https://{HOST}", "form_timeout": f"{FORM_S}s"}
    directory = tmp_path_factory.mktemp("proxied")
    config, _, _ = write_config(directory, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section)
    with console_process(config, port, host=HOST) as console:
        yield console


@pytest.fixture
def fresh(proxied: ConsoleProcess) -> ConsoleProcess:
    """Without the attempts of earlier tests."""
    with closing(proxied.store) as store, store.writing() as connection:
        for table in (database.attempts, database.audit, database.users):
            connection.execute(delete(table))
    return proxied


def exchange(console: ConsoleProcess, request: bytes) -> bytes:
    """Exactly these bytes; the whole answer."""
    with closing(socket.create_connection(("127.0.0.1", console.port), timeout=90)) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def form_of(path: str, form: dict[str, str], *fields: str) -> bytes:
    body = urlencode(form | {"form_token": form_token(SECRET)}).encode()
    head = [
        f"POST {path} HTTP/1.1", f"Host: {HOST}", f"Origin: https://{HOST}", "Connection: close",
        f"Cookie: {FORM_COOKIE}={SECRET}", "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {len(body)}", *fields,
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def attempt(number: int) -> dict[str, str]:
    return {"name": f"user{number}", "password": "wrong wrong"}


def attempted(console: ConsoleProcess, address: str, number: int) -> None:
    """Record this number of attempts from the address. Real ones would take seconds, because passwords are compared."""
    with closing(console.store) as store:
        for _ in range(number):
            assert Attempts(store).admit(None, address) == 0


def audited(console: ConsoleProcess, **wanted: str) -> list[AuditEntry]:
    with closing(console.store) as store:
        return Audit(store).find(**wanted, limit=500)  # type: ignore[arg-type]


def peak_kb(console: ConsoleProcess) -> int:
    """The most memory that the process has had."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{console.process.pid}/status").read_text())
    assert peak is not None
    return int(peak[1])


# The address of a client


def test_a_client_does_not_choose_its_address(fresh: ConsoleProcess) -> None:
    """Some proxies add their own field after the client's: only the proxy's counts."""
    attempted(fresh, "203.0.113.9", MAX_PER_ADDRESS - FEW)
    for number in range(FEW + 1):
        named = (f"X-Forwarded-For: 198.51.100.{number}", "X-Forwarded-For: 203.0.113.9")
        found = status(exchange(fresh, form_of("/sign-in", attempt(number), *named)))
        assert found == (403 if number < FEW else 429)
    assert {entry.address for entry in audited(fresh)} == {"203.0.113.9"}


def test_a_network_of_ipv6_is_one_client(fresh: ConsoleProcess) -> None:
    """A client with one address has 2^64 of them; a zone after the address is not part of it."""
    attempted(fresh, "2001:db8::ffff", MAX_PER_ADDRESS - FEW)
    for number in range(FEW + 1):
        named = f"X-Forwarded-For: 2001:db8::{number:x}%<b>{number}"
        found = status(exchange(fresh, form_of("/sign-in", attempt(number), named)))
        assert found == (403 if number < FEW else 429)
    assert "%" not in audited(fresh)[0].address
    neighbour = form_of("/sign-in", attempt(1000), "X-Forwarded-For: 2001:db8:0:1::1")
    assert status(exchange(fresh, neighbour)) == 403


def test_two_host_fields_are_refused(fresh: ConsoleProcess) -> None:
    """A proxy might have looked at the other one."""
    request = f"GET /sign-in HTTP/1.1\r\nHost: {HOST}\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert status(exchange(fresh, request.encode())) == 421


# Floods


def test_strangers_do_not_fill_the_audit_log(fresh: ConsoleProcess) -> None:
    """With links that are none; a link that is one works all the same."""
    for number in range(MAX_PER_ADDRESS + 5):
        found = status(exchange(fresh, form_of("/enter", {"token": "A" * 43}, "X-Forwarded-For: 192.0.2.1")))
        assert found == (403 if number < MAX_PER_ADDRESS else 429)
    assert len(audited(fresh)) == MAX_PER_ADDRESS
    fresh.add_user("ann")
    token = fresh.command("link", "ann").stdout.strip().rpartition("/")[2]
    assert status(exchange(fresh, form_of("/enter", {"token": token}, "X-Forwarded-For: 192.0.2.1"))) == 303


def test_a_form_that_does_not_come_is_not_waited_for(fresh: ConsoleProcess) -> None:
    """Strangers could hold all connections with it."""
    request = form_of("/sign-in", attempt(1)).replace(b"Content-Length: ", b"Content-Length: 9")
    assert status(exchange(fresh, request)) == 408


def test_a_flood_of_passwords_does_not_stop_the_others(tmp_path: Path) -> None:
    """Right after the start, from many addresses: memory stays bounded, and signed-in users can go on working."""
    port = free_port()
    section = {"address": f"127.0.0.1:{port}", "public_url": f"https://{HOST}"}
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section)
    with console_process(config, port, host=HOST) as console, ThreadPoolExecutor(60) as pool:
        browser = console.signed_in()
        sent = [
            pool.submit(exchange, console, form_of("/sign-in", attempt(number), f"X-Forwarded-For: 192.0.2.{number}"))
            for number in range(60)
        ]
        began = time.monotonic()
        assert browser.get("/sessions").status == 200
        assert time.monotonic() - began < 10 or not all(one.done() for one in sent), "it waited for all passwords"
        assert {status(one.result()) for one in sent} <= {403, 503}
        assert peak_kb(console) < 450 * 1024


@pytest.mark.parametrize("size", [6_000_000, pytest.param(22_000_000, marks=pytest.mark.long)])
def test_many_readers_of_a_large_mail_take_bounded_memory(shared: World, size: int) -> None:
    """Two mails are read at once, and a zip waits in a file: ten at once took 700 MB."""
    content = b"Subject: large\r\n\r\n" + b64encode(os.urandom(size))
    mail_id = hold(shared.console.directory, f"LARGE{size}", content=content)
    shared.console.signed_in().get("/quarantine")
    before_kb = peak_kb(shared.console)
    browsers = [shared.console.signed_in(Role.VIEWER, name="reader") for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda browser: browser.get(f"/quarantine/{mail_id}/download"), browsers))
    assert {(answer.status, len(answer.body) > size * 10 // 11) for answer in answers} == {(200, True)}
    assert peak_kb(shared.console) < 450 * 1024
    assert (peak_kb(shared.console) - before_kb) * 1024 < 17 * size  # ten at once take 27 times the size


# Forms


@pytest.mark.parametrize("charset", ["undefined", "punycode", "unicode_escape", "raw_unicode_escape"])
def test_a_form_does_not_choose_how_it_is_read(fresh: ConsoleProcess, charset: str) -> None:
    """Some of Python's codecs fail, or make half a character."""
    body = b"".join(
        b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value)
        for name, value in ((b"form_token", form_token(SECRET).encode()), (b"name", rb"\ud800"), (b"password", b"x"))
    )
    head = form_of("/sign-in", {}).partition(b"\r\nContent-Type")[0].decode()
    request = f"{head}\r\nContent-Type: multipart/form-data; boundary=B; charset={charset}\r\n"
    request += f"Content-Length: {len(body) + 5}\r\n\r\n"
    assert status(exchange(fresh, request.encode() + body + b"--B--")) in (400, 403)
    assert "Traceback" not in fresh.log


def test_text_that_a_database_cannot_keep_is_refused(fresh: ConsoleProcess) -> None:
    """PostgreSQL has no NUL: the audit log would lack the entry."""
    assert status(exchange(fresh, form_of("/sign-in", {"name": "a\0b", "password": "x"}))) == 400
    browser = fresh.signed_in()
    assert browser.get("/mail?what=%00").status == 400
    assert browser.get("/audit?name=%00&before=9223372036854775808").status == 200


def test_a_large_form_is_not_read_for_people_who_may_not_send_it(shared: World) -> None:
    """The role is checked first."""
    viewer = shared.console.signed_in(Role.VIEWER)
    host = f"127.0.0.1:{shared.console.port}"
    request = (
        f"POST /lists/actions/upload HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n"
        f"Cookie: {SESSION_COOKIE}={viewer.cookies[SESSION_COOKIE]}\r\n"
        "Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 60000000\r\n\r\n"
    )
    assert status(exchange(shared.console, request.encode())) == 403


@pytest.mark.parametrize("is_signed_in", [True, False])
@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_method_that_is_not_possible_names_those_that_are(shared: World, path: str, is_signed_in: bool) -> None:
    """RFC 9110 15.5.6: for every address, whoever asks."""
    browser = shared.console.signed_in() if is_signed_in else shared.console.browser()
    methods = {route.method for route in ROUTES if route.path == path}
    allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    for method in ("PUT", "DELETE", "OPTIONS"):
        answer = browser.ask(method, re.sub(r"{\w+}", "MAILA", path))
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")


# The audit log


def test_refused_looks_and_forms_are_in_the_audit_log(shared: World) -> None:
    """Someone tries ids of other tenants' mail, or another site uses their browser."""
    person = {"role": Role.RELEASER, "tenants": frozenset({TENANT_A}), "name": "curious"}
    browser = shared.console.signed_in(**person)  # type: ignore[arg-type]
    assert browser.get("/mail/MAILB").status == 404
    assert browser.get("/quarantine/MAILB/download").status == 404
    assert browser.get("/statistics/export?by=nothing").status == 400
    assert browser.post("/quarantine/actions/release", {"mail": "MAILA"}, Origin="https://evil.example").status == 403
    assert browser.post("/quarantine/actions/release", {"mail": "MAILA", "form_token": "x"}).status == 403
    found = [(entry.action, entry.mail, entry.result) for entry in reversed(audited(shared.console, name="curious"))]
    assert found == [
        ("viewed the story of a mail", "MAILB", "refused"),
        ("downloaded a mail", "MAILB", "refused"),
        ("exported statistics", "", "failed"),
        ("requested a release", "", "refused"),
        ("requested a release", "", "refused"),
    ]


def test_where_to_go_afterwards_does_not_hide_what_was_done(shared: World) -> None:
    """The order is in the log as done, however many fields the way back has."""
    hold(shared.console.directory, "BACKWARD")
    browser = shared.console.signed_in(Role.RELEASER, name="backward")
    form = {"mail": "BACKWARD", "back": "&".join("a=1" for _ in range(200))}
    assert browser.post("/quarantine/actions/delete", form).status == 303
    assert audited(shared.console, name="backward")[0].result == "done"
    wait_for_jobs(browser)


# People who are sent away


def test_a_user_who_is_removed_while_signing_in_gets_no_session(shared: World) -> None:
    """Comparing a password takes a while."""
    with closing(shared.console.store) as store, ThreadPoolExecutor(6) as pool:
        Users(store).add("leaver", PASSWORD, Role.ADMIN)
        browsers = [shared.console.browser() for _ in range(6)]
        for browser in browsers:
            browser.get("/sign-in")
        sent = [pool.submit(browser.post, "/sign-in", _leaver()) for browser in browsers]
        until(lambda: any(one.done() for one in sent), "one who has signed in")
        Users(store).remove("leaver")
        assert {one.result().status for one in sent} <= {303, 403}
    assert [browser.get("/").status for browser in browsers] == [303] * 6


def _leaver() -> dict[str, str]:
    return {"name": "leaver", "password": PASSWORD}


def test_a_link_ends_with_the_password(shared: World) -> None:
    """A new password is for when somebody else may have the old way in."""
    shared.console.add_user("linked")
    token = shared.console.command("link", "linked").stdout.strip().rpartition("/")[2]
    with closing(shared.console.store) as store:
        Users(store).set_password("linked", "another password")
    browser = shared.console.browser()
    browser.get("/sign-in")
    assert browser.post("/enter", {"token": token}).status == 403


def test_what_waits_is_not_done_if_the_session_is_ended(shared: World) -> None:
    """By an administrator; but it is done if its owner has only signed out."""
    directory = shared.console.directory
    for mail_id in ("ENDED1", "ENDED2", "LEFT"):
        hold(directory, mail_id)
    shared.console.add_user("left", Role.RELEASER)
    ended = shared.console.signed_in(Role.RELEASER, name="ended")
    left = shared.console.signed_in(Role.RELEASER, name="left")
    assert ended.post("/quarantine/actions/delete", {"mail": ["ENDED1", "ENDED2"]}).status == 303
    assert left.post("/quarantine/actions/delete", {"mail": "LEFT"}).status == 303
    assert left.post("/sign-out").status == 303
    with closing(shared.console.store) as store:
        sessions = Sessions(store, SessionLimits(3600, 43200)).listed()
    label = next(session.label for session in sessions if session.person.name == "ended")
    assert shared.console.signed_in().post("/sessions/revoke", {"session": label}).status == 303
    until(lambda: "LEFT" not in held_ids(directory), "the mail to be deleted")
    until(lambda: audited(shared.console, name="ended", action="deleted"), "the end of the other action")
    (entry,) = audited(shared.console, name="ended", action="deleted")
    assert entry.result == "failed" and "the session was ended: 2 mails: ENDED1, ENDED2" in entry.detail
    assert {"ENDED1", "ENDED2"} <= held_ids(directory)


@pytest.mark.parametrize("what", ["remove", "change"])
def test_what_waited_was_done_after_the_user_was_removed(shared: World, what: str) -> None:
    """Somebody who is dismissed deletes mail and signs out: no session was left that an administrator could end."""
    directory, name = shared.console.directory, f"dismissed-{what}"
    hold(directory, f"KEPT{what}")
    shared.console.add_user(name, Role.RELEASER)
    browser = shared.console.signed_in(Role.RELEASER, name=name)
    assert browser.post("/quarantine/actions/delete", {"mail": f"KEPT{what}"}).status == 303
    assert browser.post("/sign-out").status == 303
    with closing(shared.console.store) as store:
        if what == "remove":
            Users(store).remove(name)
        else:
            Users(store).change(name, Role.VIEWER, None)
    until(lambda: audited(shared.console, name=name, action="deleted"), "the end of the action")
    (entry,) = audited(shared.console, name=name, action="deleted")
    assert entry.result == "failed" and "the user was removed or changed" in entry.detail
    assert f"KEPT{what}" in held_ids(directory)


async def test_actions_on_all_matching_mail_filled_the_memory() -> None:
    """Thirty actions on five thousand mails each, of one person; another person is not affected."""
    jobs, begun = Jobs(60), 0
    action = Action(("Delete", "deleted"), "", 5000, mails=("X",) * 5000)

    async def nothing(job: Job) -> None: ...

    with pytest.raises(TooManyJobs):
        for begun in range(30):  # noqa: B007
            jobs.begin("one", "s", action, nothing, nothing)
    assert begun == 4
    jobs.begin("other", "s", action, nothing, nothing)
    assert jobs.begin("one", "s", Action(("Add", "added"), "", 9), nothing, nothing)
    await jobs.stop(10)


def test_finished_actions_are_not_kept_without_end(shared: World) -> None:
    """Someone requests and undoes actions again and again."""
    hold(shared.console.directory, "AGAIN")
    browser = shared.console.signed_in(Role.RELEASER, frozenset({TENANT_A, TENANT_B}), name="again")
    for _ in range(40):
        browser.post("/quarantine/actions/release", {"mail": "AGAIN"})
        job = re.search(r'name="job" value="([\w-]+)"', browser.get("/quarantine/jobs").text)
        assert job is not None
        assert browser.post("/quarantine/actions/undo", {"job": job[1]}).status == 303
    assert browser.get("/quarantine/jobs").text.count('data-job="undone"') == 30


async def test_actions_at_the_end_of_the_process() -> None:
    """What waits is dropped, and what runs ends with its own result."""
    jobs, dropped, ended, go_on = Jobs(undo_s=1.0), [], [], asyncio.Event()

    async def drop(job: Job) -> None:
        dropped.append(job.id)

    async def work(job: Job) -> None:
        await go_on.wait()
        ended.append((job.id, jobs.is_stopping))

    running = jobs.begin("ann", "", Action(("Delete", "deleted"), "M1", 1), work, drop)
    await eventually(lambda: running.state is State.RUNNING, "the action to run")
    waiting = jobs.begin("ann", "", Action(("Delete", "deleted"), "M2", 1), work, drop)
    await asyncio.sleep(0)  # until it waits
    stopping = asyncio.create_task(jobs.stop(30))
    await eventually(lambda: dropped == [waiting.id], "the other one to be dropped")
    assert not stopping.done()
    go_on.set()
    await stopping
    assert ended == [(running.id, True)] and running.state is State.DONE
