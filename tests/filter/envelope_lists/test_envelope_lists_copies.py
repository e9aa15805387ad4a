"""The local copy: it survives restarts and outages, is never incomplete, and a separate process refreshes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.lists.command import lists as lists_command
from bridge.config.model import Config
from bridge.lists import fetch
from bridge.lists.copies import Copies, Wanted
from bridge.lists.retry import RetrySettings
from bridge.matching import table
from bridge.matching.table import BadTable, Table, TableMaker
from bridge.runtime import yaml_file
from bridge.testing import SmtpClient, free_port, running_bridge
from tests.daemon.process_kit import get, parts, start, write_config
from tests.filter.envelope_lists.envelope_lists_kit import door, offer, section
from tests.filter.smtp_kit import until
from tests.lists.lists_kit import INFOS, STREAM, TENANT, chunk, http, lines, misbehaving, whole

LARGE = {"block": ["large"]}


def serving(*entries: str, cut: bool = False):
    """A service with one list, whose stream may be cut off."""

    def answer(seen):
        if seen.operation == "getLists":
            return http(200, INFOS)
        if cut:
            return b"<cut>" + STREAM + chunk(lines(*entries))
        return whole(*entries)

    return answer


def copy_of(bridge, name: str = "large"):
    return bridge.daemon.list_refresh.copies.get(name, None)


def test_a_copy_is_enforced_from_the_first_connection_and_survives_the_service(tmp_path):
    """After a restart without the service, senders are still blocked; status and metrics show the copy's age."""
    with (
        misbehaving(tmp_path, serving("bad@sender.example")) as server,
        door(tmp_path, server, LARGE, {"tenants": []}) as bridge,
    ):
        assert offer(bridge, "bad@sender.example").startswith("550 5.7.1")
    given = {"lists": section(server)}
    with running_bridge(tmp_path, given, lists=LARGE) as bridge:
        assert offer(bridge, "bad@sender.example").startswith("550 5.7.1")
        assert offer(bridge).startswith("250")
        state = json.loads(get(bridge.admin_port, "/status")[1])["lists"]
        assert [(copy["name"], copy["entries"], copy["tenant"]) for copy in state] == [("large", 1, None)]
        metrics = get(bridge.admin_port, "/metrics")[1]
        assert 'scanbridge_list_entries{list="large"} 1.0' in metrics
        assert 'scanbridge_list_age_seconds{list="large"}' in metrics
        assert 'scanbridge_list_copies_missing{list="large"} 0.0' in metrics


def test_a_cut_stream_never_shrinks_a_list(tmp_path):
    """The old copy is kept; log, status and metrics show the problem until a complete stream arrives."""
    with misbehaving(tmp_path, serving("bad@sender.example", "old@sender.example")) as server:
        given = {"tenants": [], "lists": section(server, refresh="1s")}
        with door(tmp_path, server, LARGE, given) as bridge:
            server.answer = serving("bad@sender.example", cut=True)
            until(lambda: bridge.daemon.list_refresh.copies.problems, "the failed refresh")
            assert "cut off" in bridge.daemon.list_refresh.copies.problems["large"]
            assert offer(bridge, "old@sender.example").startswith("550")
            assert copy_of(bridge).table.about.count == 2
            failed = bridge.daemon.metrics.list_refreshes.values
            until(lambda: failed["failed",] >= 1, "the count")
            assert "cut off" in json.loads(get(bridge.admin_port, "/status")[1])["lists"][0]["problem"]
            server.answer = serving("new@sender.example")
            until(lambda: not bridge.daemon.list_refresh.copies.problems, "a successful refresh")
            assert offer(bridge, "new@sender.example").startswith("550")
            assert offer(bridge, "old@sender.example").startswith("250")


@pytest.mark.parametrize(("choice", "reply"), [("accept", "250 2.0.0 Ok"), ("tempfail", "451 4.3.0 The lists")])
def test_without_any_copy_the_configured_action_applies(tmp_path, choice, reply):
    """A first start while the service is down: mail is accepted and a metric shows it, or mail is deferred."""
    with misbehaving(tmp_path, serving("bad@sender.example")) as server:
        pass
    given = {"lists": section(server, without_copy=choice)}
    with running_bridge(tmp_path, given, lists=LARGE) as bridge:
        assert offer(bridge, "bad@sender.example").startswith(reply)
        metrics = get(bridge.admin_port, "/metrics")[1]
        assert 'scanbridge_list_copies_missing{list="large"} 1.0' in metrics
        assert 'list_age_seconds{list="large"}' not in metrics


def test_a_damaged_copy_is_not_used_and_is_fetched_again(tmp_path):
    """A flipped bit makes it invalid; no mail is refused because of it."""
    with misbehaving(tmp_path, serving("bad@sender.example")) as server:
        with door(tmp_path, server, LARGE, {"tenants": []}) as bridge:
            path = bridge.daemon.list_refresh.copies.directory / Wanted("large").file_name
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
        with door(tmp_path, server, LARGE, {"tenants": []}) as bridge:
            assert offer(bridge, "bad@sender.example").startswith("550")


def test_a_missing_list_is_reported_and_the_others_are_kept(service, tmp_path, caplog):
    """A mistyped name, and a list of a category that no envelope can match."""
    lists = {"block": ["no-such-list", "notes", "blocked-senders"]}
    given = {"lists": section(service), "tenants": []}
    with running_bridge(tmp_path, given, lists=lists) as bridge:
        until(lambda: offer(bridge, "bad@sender.example").startswith("550"), "the good list")
        until(lambda: len(bridge.daemon.list_refresh.copies.problems) == 2, "the problems")
        assert bridge.daemon.list_refresh.copies.problems["no-such-list"] == "the service has no list with this name"
        assert "lists.kinds" in bridge.daemon.list_refresh.copies.problems["notes"]


def test_the_kind_of_entries_can_be_configured(service, tmp_path):
    """Another service may use other categories."""
    service.add("notes", {"stranger.example": "a domain, we say"})
    given = {"lists": section(service, kinds={"notes": "domain"})}
    with door(tmp_path, service, {"block": ["notes"]}, given) as bridge:
        assert offer(bridge, "x@sub.stranger.example").startswith("550")


def refresh(path: Path, *more: str):
    return CliRunner().invoke(lists_command, ["refresh", "-c", str(path), *more], catch_exceptions=False)


def test_refresh_on_demand_is_seen_by_the_running_daemon(service, tmp_path):
    """`scanbridge lists refresh` needs no signal and no restart, and prints what it did."""
    with door(tmp_path, service, {"block": ["changing"]}) as bridge:
        assert offer(bridge, "new@sender.example").startswith("250")
        service.add("changing", {"new@sender.example": ""})
        config = tmp_path / "bridge.yml"
        config.write_text(yaml_file.dump(json.loads(bridge.daemon.config.model_dump_json())))
        inode = copy_of(bridge, "changing").identity
        done = refresh(config, "--json")
        assert done.exit_code == 0, done.output
        assert [(line["list"], line["tenant"], line["entries"]) for line in json.loads(done.stdout)["lists"]] == [
            ("changing", None, 1),
            ("changing", TENANT, 0),
        ]
        until(lambda: copy_of(bridge, "changing").identity != inode, "the daemon to read the new copy")
        assert offer(bridge, "new@sender.example").startswith("550")
        # An unchanged list is not written again, but its age is reset.
        path = bridge.daemon.list_refresh.copies.directory / Wanted("changing").file_name
        inode = path.stat().st_ino
        os.utime(path, (1, 1))
        assert refresh(config).exit_code == 0
        assert path.stat().st_ino == inode
        assert time.time() - path.stat().st_mtime < 60


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (lambda _: http(401, {"error": "unauthorized"}), 77, "refuses the API key"),
        (lambda _: http(200, {"listFileInfos": []}), 1, "no list with this name"),
        (lambda _: http(200, {"nonsense": 1}), 1, "contains no lists"),
    ],
)
def test_a_refresh_that_fails_says_why_and_leaves_the_copy(tmp_path, answer, code, text):
    """The exit code tells a script what to do; the old copy is still enforced."""
    with misbehaving(tmp_path, serving("bad@sender.example")) as server:
        with door(tmp_path, server, LARGE, {"tenants": []}) as bridge:
            config = tmp_path / "bridge.yml"
            config.write_text(yaml_file.dump(json.loads(bridge.daemon.config.model_dump_json())))
        server.answer = answer
        done = refresh(config)
        assert (done.exit_code, text in done.output) == (code, True), done.output
        copies = Copies(tmp_path / "state" / "lists")
        copies.want([Wanted("large")])
        copies.look()
        assert copies.get("large", None).table.about.count == 1


@pytest.mark.parametrize("tenant", [None, TENANT])
def test_one_list_that_could_not_be_fetched_kept_the_others_from_being_fetched(tmp_path, tenant):
    """Or one tenant. Each refresh began with it, and ended there: a service that fails uses up the patience."""
    broken = Wanted("broken" if tenant is None else "first", tenant)
    wanted = (broken, Wanted("first"), Wanted("second"))
    infos = [{"listName": name, "listInfo": {"category": "sender"}} for name in ("broken", "first", "second")]

    def answer(seen):
        if seen.body.get("tenantUid") == TENANT or seen.body.get("listName") == "broken":
            return http(500)
        return http(200, {"listFileInfos": infos}) if seen.operation == "getLists" else whole("bad@sender.example")

    def due() -> tuple[Wanted, ...]:
        return tuple(each for each in wanted if not (copies / each.file_name).exists())

    (copies := tmp_path / "lists").mkdir()
    with misbehaving(tmp_path, answer) as server:
        settings = server.settings(retry=RetrySettings(patience_s=0.0))
        for _ in range(100):
            problems = asyncio.run(fetch.refresh(fetch.Job(settings, None, copies, wanted, due())))
            assert str(broken) in problems
            if len(due()) == 1:
                break
    assert due() == (broken,)


def test_a_reload_can_add_and_remove_lists(service, tmp_path):
    """A newly named list is fetched immediately; without lists, no mail is refused."""
    with running_bridge(tmp_path, {"lists": section(service)}) as bridge:
        assert offer(bridge, "bad@sender.example").startswith("250")
        data = json.loads(bridge.daemon.config.model_dump_json())
        for lists, reply in (({"block": ["blocked-senders"]}, "550"), (None, "250")):
            data["listeners"][0]["lists"] = lists
            conf = yaml_file.load(tmp_path / "bridge.yml", Config, yaml_file.dump(data))
            bridge.background.run(bridge.daemon.reload(lambda conf=conf: conf))
            assert bridge.daemon.reloads.ok, bridge.daemon.reloads.problem
            until(
                lambda reply=reply: offer(bridge, "bad@sender.example").startswith(reply),
                "the reload to take effect",
                30,
            )


def test_refresh_without_configured_lists_says_so(service, tmp_path):
    """No listener uses lists, so there is nothing to refresh."""
    with running_bridge(tmp_path, {"lists": section(service)}) as bridge:
        config = tmp_path / "bridge.yml"
        config.write_text(yaml_file.dump(json.loads(bridge.daemon.config.model_dump_json())))
    done = refresh(config)
    assert (done.exit_code, done.stderr) == (0, "nothing to refresh: no listener enforces a list\n")


def test_workers_share_the_copies_and_one_of_them_fetches(tmp_path):
    """Every worker refuses, including one that started later; the service got one request."""
    with misbehaving(tmp_path, serving("bad@sender.example")) as server, parts() as (_, scanner, next_hop):
        port = free_port()
        listener = {"name": "mx", "address": f"127.0.0.1:{port}", "lists": LARGE}
        sections = {"workers": 2, "lists": section(server), "listeners": [listener]}
        config, _, admin = write_config(tmp_path, scanner.url, next_hop.url, **sections)
        bridge = start(config, port, admin)
        try:
            path = tmp_path / "state" / "lists" / Wanted("large").file_name
            until(path.exists, "the copy")
            state = json.loads(get(admin, "/status")[1])
            os.kill(state["workers"][0]["pid"], signal.SIGKILL)
            pids = {worker["pid"] for worker in state["workers"]}
            until(lambda: {w["pid"] for w in _workers(admin)} - pids and len(_workers(admin)) == 2, "a new worker")
            until(lambda: all(_refused(port) for _ in range(10)), "every worker to read the new copy")
            assert server.operations() == ["getLists", "listEntries"]
        finally:
            bridge.end()


def _workers(admin: int) -> list[dict]:
    return [w for w in json.loads(get(admin, "/status")[1] or '{"workers": []}')["workers"] if w["ready"]]


def _refused(port: int) -> bool:
    with SmtpClient(port) as client:
        client.open()
        return client.say(b"MAIL FROM:<bad@sender.example>", b"RCPT TO:<b@example.org>")[1].startswith(b"550")


def test_a_file_that_is_not_a_valid_table_is_refused(tmp_path):
    """An empty file, a truncated one, another kind of file, a wrong header."""
    maker = TableMaker("sender")
    for i in range(100):
        maker.add(f"user{i}@example.org")
    about, body = maker.finish("x", None)
    good = table.head(about) + b"".join(body)
    path = tmp_path / "copy"
    path.write_bytes(good)
    assert "user7@example.org" in Table.open(path)
    assert "user100@example.org" not in Table.open(path)
    for bad in (b"", good[:-1], good + b"x", b"x" + good, good.replace(b'"count": 100', b'"count": 999'), good[:40]):
        path.write_bytes(bad)
        with pytest.raises(BadTable):
            Table.open(path)


def test_entries_match_in_any_spelling_and_invalid_ones_are_left_out(tmp_path):
    """Entries are normalised; invalid ones are counted."""
    for category, entries, inside, outside in (
        ("sender", ["User@Example.ORG", "example.net", "nonsense@", "a b"], ["user@example.org", "@example.net"], "x"),
        ("domain", ["*.Example.org", ".example.net", "?"], ["example.org", "example.net"], "org"),
    ):
        maker = TableMaker(category)
        for entry in entries:
            maker.add(entry)
        about, body = maker.finish("x", None)
        path = tmp_path / category
        path.write_bytes(table.head(about) + b"".join(body))
        found = Table.open(path)
        assert all(word in found for word in inside) and outside not in found
        assert (about.count, about.skipped) == (2, len(entries) - 2)
