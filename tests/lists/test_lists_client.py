"""The Python client, with the real service and with a misbehaving one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, suppress

import pytest
import trustme

from bridge.lists import (
    EntryRefused,
    ListClient,
    ListEntry,
    ListFull,
    ListNotFound,
    ListsError,
    ListSettings,
    ListsForbidden,
    ListsMalformed,
    ListsRefused,
    ListsUnavailable,
    RetrySettings,
    Tally,
)
from bridge.lists.retry import Patience, parse_retry_after
from tests.dripping_server import dripping
from tests.lists.lists_kit import (
    DEADLINE_S,
    OTHER,
    SECRET,
    STREAM,
    TENANT,
    Misbehaving,
    Seen,
    chunk,
    http,
    lines,
    misbehaving,
    running_service,
    scripted,
    whole,
)

ADDED = http(200, {"modifiedEntries": 0})


async def use(settings: ListSettings, work):
    """Run `work(client)` with a new client."""
    async with ListClient(settings) as client:
        return await asyncio.wait_for(work(client), DEADLINE_S)


async def gathered(client: ListClient, name: str, tenant: str | None = None) -> list[ListEntry]:
    return [entry async for entry in client.entries(name, tenant)]


def some(count: int) -> list[ListEntry]:
    return [ListEntry(f"user{i:06}@example.org", f"number {i}") for i in range(count)]


async def test_the_four_operations_on_a_real_service(on_each_database):
    """Add, list, delete and show, with comments, in a tenant's scope and in the deployment-global one."""

    async def work(client: ListClient) -> None:
        given = some(1201)
        assert (await client.add("large", given, TENANT)).modified == 1201
        assert await gathered(client, "large", TENANT) == given
        assert await gathered(client, "large", OTHER) == await gathered(client, "large") == []
        deleted = [entry.entry for entry in given[:700]] + ["nobody@example.org"]
        assert (await client.delete("large", deleted, TENANT)).modified == 700
        assert await gathered(client, "large", TENANT) == given[700:]
        partners = next(info for info in await client.lists(TENANT) if info.name == "partners")
        assert (partners.display_name, partners.category, partners.max_size) == ("Partners", "sender", 3)

    await use(on_each_database.settings(), work)


async def test_an_async_source_is_sent_as_it_arrives(service):
    """Entries from a database cursor or a feed need not be in memory."""

    async def source():
        for entry in some(501):
            await asyncio.sleep(0)
            yield entry

    assert (await use(service.settings(), lambda client: client.add("large", source()))).modified == 501
    assert len(service.entries("large")) == 501


async def test_batches_have_500_entries_and_run_in_parallel(tmp_path):
    """The client splits any number of entries into batches and sends a few at a time."""
    together = threading.Barrier(3)

    def answer(_: Seen) -> bytes:
        together.wait(DEADLINE_S)  # returns only while three requests are in flight
        return http(200, {"modifiedEntries": 1})

    with misbehaving(tmp_path, answer) as server:
        tally = await use(server.settings(parallel=3), lambda client: client.add("large", some(3000)))
        assert tally == Tally(confirmed=3000, modified=6)
        assert [len(request.body["entries"]) for request in server.seen] == [500] * 6
        assert server.most_at_once == 3


async def test_requests_conform_to_the_interface(tmp_path):
    """POST with the `apikey` scheme, JSON, and no tenantUid for the deployment-global scope."""
    with misbehaving(tmp_path, lambda _: ADDED) as server:
        await use(server.settings(), lambda client: client.add("a", [ListEntry("x", "ü")]))
        await use(server.settings(), lambda client: client.delete("a", ["x"], TENANT))
        add, delete = server.seen
    assert add.head.startswith("POST /api/public/lists/v1/addEntries HTTP/1.1\r\n")
    assert f"\r\nAuthorization: apikey {SECRET}\r\n" in add.head
    assert "\r\nContent-Type: application/json\r\n" in add.head
    assert add.body == {"listName": "a", "entries": [{"entry": "x", "comment": "ü"}]}
    assert delete.body == {"listName": "a", "entries": ["x"], "tenantUid": TENANT}


async def test_unknown_fields_and_blank_lines_are_ignored(tmp_path):
    """A newer service may send more than we know."""
    body = b'{"entry": "a@x.org", "comment": "c", "id": 7, "tags": []}\r\n\n{"entry": "b@x.org", "comment": null}'
    split = [body[i : i + 5] for i in range(0, len(body), 5)]
    stream = STREAM + b"".join(map(chunk, split)) + b"0\r\n\r\n"
    lists = http(200, {"listFileInfos": [{"listName": "x", "owner": 1}], "next": None})
    with misbehaving(tmp_path, scripted(stream, lists)) as server:
        found = await use(server.settings(), lambda client: gathered(client, "x"))
        assert found == [ListEntry("a@x.org", "c"), ListEntry("b@x.org")]
        assert [info.name for info in await use(server.settings(), lambda client: client.lists())] == ["x"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_temporary_failures_are_retried(tmp_path, status):
    """All operations are idempotent, so another attempt does no harm."""
    bad = http(status, {"error": "busy"})
    with misbehaving(tmp_path, scripted(bad, bad, Misbehaving.CUT, ADDED)) as server:
        tally = await use(server.settings(), lambda client: client.add("a", some(3)))
        assert tally.confirmed == 3
        assert len(server.seen) == 4


async def test_retry_after_delays_all_requests(tmp_path):
    """No request is sent before the time the service asked for; too long a wait is an error immediately."""
    soon = http(429, {"error": "slow_down"}, "Retry-After: 0")
    late = http(503, {"error": "maintenance"}, "Retry-After: 3600")
    with misbehaving(tmp_path, scripted(soon, ADDED, late)) as server:
        assert (await use(server.settings(), lambda client: client.add("a", some(1)))).confirmed == 1
        with pytest.raises(ListsUnavailable, match=r"503 \(maintenance\)") as caught:
            await use(server.settings(), lambda client: client.add("a", some(1)))
        assert caught.value.retry_after_s == 3600
        assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (http(401, {"error": "unauthorized", "message": f"key {SECRET} is wrong"}), ListsForbidden, r"\*\*\*"),
        (http(403), ListsForbidden, "403"),
        (http(404, {"error": "list_not_found", "message": "there is no list"}), ListNotFound, "there is no list"),
        (http(404, b"<html>"), ListNotFound, "no List API at this URL"),
        (http(409, {"error": "list_full", "message": "more than 3"}), ListFull, "more than 3"),
        (http(409, {"error": "x", "message": "`entries[1]`: odd"}), EntryRefused, "'user000001@\\S+' was refused"),
        (http(400, {"error": "x", "message": "`entries[999]`: odd"}), EntryRefused, "odd"),
        (http(400, {"error": "bad\r\n\x1b[31m", "message": "m" * 5000}), ListsRefused, r"bad\?\?\?\[31m"),
        (http(307, None, "Location: http://127.0.0.1:1/"), ListsRefused, "redirect"),
        (http(200, b"<html>"), ListsMalformed, "not JSON"),
        (http(200, b"[" * 60_000), ListsMalformed, "not JSON"),
        (http(200, []), ListsMalformed, "not an object"),
        (http(200, {"modifiedEntries": True}), ListsMalformed, "how many"),
        (http(200, {"modifiedEntries": -1}), ListsMalformed, "how many"),
        (http(200, b" " * 100_000), ListsMalformed, "larger"),
        (http(200, {"modifiedEntries": 1}, "Content-Encoding: gzip"), ListsMalformed, "compressed"),
    ],
)  # fmt: skip
async def test_permanent_failures_are_reported_without_a_retry(tmp_path, answer, error, text):
    """Each refusal has its own class and one line of text without the key."""
    with misbehaving(tmp_path, scripted(answer)) as server:
        with pytest.raises(error, match=text) as caught:
            await use(server.settings(), lambda client: client.add("a", some(2)))
        assert len(server.seen) == 1
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (STREAM + chunk(b'{"entry": 1}\n'), ListsMalformed, "line 1 of the entries"),
        (STREAM + chunk(lines("a") + b"nonsense\n"), ListsMalformed, "line 2"),
        (STREAM + chunk(lines("a") + b'{"ent') + b"0\r\n\r\n", ListsMalformed, "line 2"),
        (STREAM + chunk(b"x" * 1_100_000), ListsMalformed, "line 1 of the entries is longer than"),
        (Misbehaving.CUT + STREAM + chunk(lines("a", "b")), ListsUnavailable, "cut off after 2 entries"),
        (Misbehaving.CUT + b"HTTP/1.1 200 X\r\n\r\n" + lines("a"), ListsMalformed, "so it may be incomplete"),
        (http(200, None, "Content-Encoding: gzip"), ListsMalformed, "compressed"),
    ],
)
async def test_an_incomplete_stream_is_an_error(tmp_path, answer, error, text):
    """Half a block list must never be mistaken for a complete one."""
    with (
        misbehaving(tmp_path, scripted(answer)) as server,
        pytest.raises(error, match=text),
    ):
        await use(server.settings(), lambda client: gathered(client, "x"))


@pytest.mark.parametrize(
    ("start", "limits", "error", "text"),
    [
        (b"HTTP/1.1 200 X\r\nX: ", {"answer_timeout_s": 0.3}, ListsUnavailable, "no answer within 0.3 s"),
        (STREAM + b"ffffff\r\n", {"longest_s": 0.3}, ListsMalformed, "has not ended after 0.3 s"),
        (STREAM + b"ffffff\r\n" + lines(*map(str, range(100))), {"max_list": 500}, ListsMalformed, "than 500 bytes"),
    ],
    ids=["head", "drip", "flood"],
)
async def test_a_list_without_an_end_was_read_for_ever(start, limits, error, text):
    """A byte at a time, or as fast as it can: it filled the console's memory, and the directory of its copies."""
    with dripping(start) as address:
        settings = ListSettings(f"http://{address}", SECRET, retry=RetrySettings(0.0), **limits)
        with pytest.raises(error, match=text):
            await use(settings, lambda client: gathered(client, "x"))


async def test_a_stream_that_fails_before_its_first_entry_is_opened_again(tmp_path):
    """No entry was delivered yet, so the caller does not notice."""
    answers = scripted(http(503), Misbehaving.CUT, Misbehaving.CUT + STREAM, whole("a", "b"))
    with misbehaving(tmp_path, answers) as server:
        found = await use(server.settings(), lambda client: gathered(client, "x"))
        assert [entry.entry for entry in found] == ["a", "b"]


async def test_a_stream_can_be_left_early(service):
    """A caller that stops early closes the connection, and the client can still be used."""
    service.add("large", {entry.entry: "" for entry in some(6000)})

    async def work(client: ListClient) -> int:
        async with aclosing(client.entries("large")) as entries:
            async for _ in entries:
                break
        return len(await gathered(client, "large"))

    assert await use(service.settings(parallel=1), work) == 6000


async def test_the_tally_counts_what_is_confirmed_and_what_is_uncertain(tmp_path):
    """After a failure the tally distinguishes confirmed entries from those whose answer was lost."""

    def answer(seen: Seen) -> bytes:
        first = seen.body["entries"][0]["entry"]
        return Misbehaving.CUT if first == "user001000@example.org" else http(200, {"modifiedEntries": 500})

    tally = Tally()
    with misbehaving(tmp_path, answer) as server, pytest.raises(ListsUnavailable):
        settings = server.settings(parallel=1, retry=RetrySettings(0.05, 0.01, 0.01))
        await use(settings, lambda client: client.add("a", some(3000), tally=tally))
    assert tally == Tally(confirmed=1000, modified=1000, uncertain=500)


async def test_a_source_that_fails_ends_the_operation_with_its_own_error(tmp_path):
    """An error of the caller's iterator reaches the caller unchanged."""

    def source():
        yield from some(600)
        raise KeyError("mine")

    with misbehaving(tmp_path, lambda _: ADDED) as server, pytest.raises(KeyError, match="mine"):
        await use(server.settings(), lambda client: client.add("a", source()))


async def test_an_unfinished_answer_ends_at_the_timeout(tmp_path):
    """The timeout applies to the whole answer, not to each byte."""
    never = b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"
    with misbehaving(tmp_path, lambda _: never) as server, pytest.raises(ListsUnavailable, match="no answer within"):
        settings = server.settings(answer_timeout_s=0.1, retry=RetrySettings(patience_s=0))
        await use(settings, lambda client: client.add("a", some(1)))


async def test_an_environment_proxy_never_sees_the_key(tmp_path, monkeypatch):
    """HTTP_PROXY in the environment must not send our key elsewhere."""
    with misbehaving(tmp_path, lambda _: ADDED) as proxy, misbehaving(tmp_path, lambda _: ADDED) as server:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        await use(server.settings(), lambda client: client.add("a", some(1)))
        assert (len(proxy.seen), len(server.seen)) == (0, 1)


async def test_an_unreachable_service_is_a_temporary_failure():
    """A service that is down is worth another attempt later."""
    settings = ListSettings("http://127.0.0.1:1", SECRET, retry=RetrySettings(0.01, 0.001, 0.001))
    with pytest.raises(ListsUnavailable, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        await use(settings, lambda client: client.lists())


def test_the_key_is_not_in_the_repr_of_the_settings():
    """A traceback does not show the secret."""
    assert SECRET not in repr(ListSettings("http://127.0.0.1:1", SECRET))


@pytest.fixture
def tls_service(tmp_path):
    """A service whose certificate comes from a private authority; `ca.pem` is the authority's."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = f"tls: {{cert_file: {tmp_path}/cert.pem, key_file: {tmp_path}/key.pem}}"
    with running_service(tmp_path, more=tls) as service:
        yield service


async def test_an_untrusted_certificate_is_refused(tls_service):
    """The client stops if no authority of the system has issued the certificate."""
    with pytest.raises(ListsRefused, match="certificate is not trusted"):
        await use(tls_service.settings(), lambda client: client.lists())


def test_a_certificate_of_the_given_authority_is_trusted(tls_service, tmp_path):
    """With --ca-file the command works, without it it does not."""
    shown = tls_service.run("show", "--ca-file", str(tmp_path / "ca.pem"))
    assert shown.exit_code == 0 and "partners" in shown.output
    assert tls_service.run("show").exit_code == 1


def test_delays_grow_until_the_time_is_used_up():
    """Delays grow up to their limit, and retries stop when the time is used up."""
    patience = Patience(RetrySettings(patience_s=10, first_delay_s=1, max_delay_s=4))
    for ceiling in (1, 2, 4, 4, 4):
        assert 0 <= patience.delay(100.0) <= ceiling
    assert 3 <= patience.delay(100.0, retry_after_s=3) <= 4
    assert patience.delay(100.0, retry_after_s=11) is None
    assert patience.delay(110.1) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("9" * 20, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, expected):
    """Both forms of the header are understood, anything else is ignored."""
    assert parse_retry_after(value, now=10.0) == expected


def test_every_error_is_a_lists_error():
    """A caller needs only one `except ListsError`."""
    for kind in (EntryRefused, ListFull, ListNotFound, ListsForbidden, ListsMalformed, ListsRefused, ListsUnavailable):
        assert issubclass(kind, ListsError)


@pytest.mark.parametrize("with_id", [True, False])
async def test_a_service_that_answers_twice_does_not_answer_the_next_request(with_id: bool) -> None:
    """Another list's entries must not become this one's."""
    served: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
                await reader.readexactly(int(fields.get(b"content-length", b"0")))
                served.append(head)
                body = b'{"listFileInfos": [%b]}' % (b"" if len(served) == 1 else b"1")
                own = b"X-Scan-Request-Id: %b\r\n" % fields[b"x-scan-request-id"] if with_id else b""
                one = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (own, len(body), body)
                writer.write(one + one)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with ListClient(ListSettings(url, "k" * 54)) as client:
        assert await client.lists() == []
        for _ in range(2):
            with pytest.raises(ListsError):  # its own answer, which is no list
                await client.lists()
    server.close()
