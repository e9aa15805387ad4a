"""The List API over real sockets, on SQLite and on PostgreSQL."""

from __future__ import annotations

import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import yaml
from pydantic import ValidationError
from sqlalchemy import create_engine, text

from bridge.matching.spelling import normalise
from bridge.service.analysis.content.links import Links
from bridge.service.analysis.content.page_text import ascii_lower
from bridge.service.decision_settings import Decisions
from bridge.service.lists.endpoint import MAX_REQUESTS
from bridge.service.lists.index import ListIndex, traits_of
from bridge.service.lists.store import GLOBAL, PREDEFINED, Entry, ListFull, ListStore
from bridge.service.settings import ListDefinition, ServiceConfig
from bridge.service.store import MIGRATIONS, Store, StoreUnavailable
from bridge.testing import until
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    SOON_S,
    TOKEN,
    Lists,
    fresh_database,
    mail,
    make_key,
    service,
    wait_for,
)

TENANT = "123e4567-e89b-12d3-a456-426614174000"
OTHER = "00000000-0000-4000-8000-000000000001"
LIST_CONFIG = (
    CONFIG
    + """
lists:
  - {name: partners, displayName: Partners, category: sender, description: Who we work with, maxSize: 3}
decisions:
  rules:
    - {tags: ["list:blocked-*"], verdict: blocked, decision: bounce}
    - {tags: ["list:partners"], verdict: partner, decision: drop}
"""
)


def _config(database: str) -> str:
    return LIST_CONFIG.replace("sqlite:///service.sqlite", database)


@pytest.fixture
def running(tmp_path, database):
    with service(tmp_path, _config(database), with_key=True) as running:
        yield running


@pytest.fixture
def lists(running):
    client = Lists(running)
    wait_for(lambda: client.call("getLists", {}).status == 200)
    return client


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def shared_lists(request, tmp_path_factory):
    """For tests that change nothing: an entry is refused before a database is asked."""
    url = "sqlite:///service.sqlite"
    if request.param == "postgresql":
        url = fresh_database(request.getfixturevalue("postgresql"))
    with service(tmp_path_factory.mktemp("shared"), _config(url), with_key=True) as running:
        client = Lists(running)
        wait_for(lambda: client.call("getLists", {}).status == 200)
        yield client


def test_the_whole_life_of_a_list(lists):
    """Add, update, list and delete each return the documented count."""
    assert lists.entries("blocked-senders") == []
    assert lists.add("blocked-senders", "a@example.org", "b@example.org").json == {"modifiedEntries": 2}
    assert lists.add("blocked-senders", "a@example.org", "c@example.org", comment="new").json == {"modifiedEntries": 2}
    assert lists.entries("blocked-senders") == [
        {"entry": "a@example.org", "comment": "new"},
        {"entry": "b@example.org", "comment": "c"},
        {"entry": "c@example.org", "comment": "new"},
    ]
    assert lists.delete("blocked-senders", "a@example.org", "never@example.org").json == {"modifiedEntries": 1}
    assert lists.delete("blocked-senders", "a@example.org").json == {"modifiedEntries": 0}
    assert [e["entry"] for e in lists.entries("blocked-senders")] == ["b@example.org", "c@example.org"]


def test_scopes_are_separate(running, lists):
    """A call works on one tenant's list, or on the deployment-global one."""
    tenant, other = Lists(running, lists.key, TENANT), Lists(running, lists.key, OTHER)
    tenant.add("blocked-domains", "one.example")
    lists.add("blocked-domains", "all.example")
    assert [e["entry"] for e in tenant.entries("blocked-domains")] == ["one.example"]
    assert other.entries("blocked-domains") == []
    assert [e["entry"] for e in lists.entries("blocked-domains")] == ["all.example"]


def test_get_lists_shows_predefined_and_configured_lists(lists):
    """Every list of the scope is returned with its metadata."""
    infos = lists.call("getLists", {"tenantUid": TENANT}).json["listFileInfos"]
    found = {info["listName"]: info["listInfo"] for info in infos}
    assert {definition.name for definition in PREDEFINED} < found.keys()
    assert found["partners"] == {
        "displayName": "Partners", "category": "sender", "description": "Who we work with", "maxSize": 3,
    }  # fmt: skip


def test_max_size_limits_the_entries_per_scope(running, lists):
    """A list holds maxSize entries; an addition beyond that changes nothing, but an update still works."""
    assert lists.add("partners", "a@x.org", "b@x.org", "c@x.org").status == 200
    answer = lists.add("partners", "c@x.org", "d@x.org")
    assert (answer.status, answer.json["error"]) == (409, "list_full")
    assert len(lists.entries("partners")) == 3
    assert lists.add("partners", "a@x.org", comment="updated").status == 200
    assert Lists(running, lists.key, TENANT).add("partners", "z@x.org").status == 200
    lists.delete("partners", "a@x.org")
    assert lists.add("partners", "d@x.org").status == 200


def test_500_entries_pass_and_501_do_not(lists):
    """The limit per request applies to additions and deletions."""
    names = [f"u{i}@example.org" for i in range(501)]
    for operation in (lists.add, lists.delete):
        answer = operation("blocked-senders", *names)
        assert (answer.status, answer.json["error"]) == (400, "too_many_entries")
        assert operation("blocked-senders", *names[:500]).json == {"modifiedEntries": 500}


@pytest.mark.parametrize(
    ("operation", "body", "status", "error"),
    [
        ("addEntries", {"listName": "../x", "entries": []}, 404, "list_not_found"),
        ("listEntries", {"listName": "../x"}, 404, "list_not_found"),
        ("listEntries", {"listName": ["blocked-senders"]}, 400, "invalid_request"),
        ("listEntries", {}, 400, "invalid_request"),
        ("listEntries", [], 400, "invalid_request"),
        ("listEntries", b"", 400, "invalid_request"),
        ("listEntries", b"{", 400, "invalid_request"),
        ("listEntries", b"[" * 100_000, 400, "invalid_request"),
        ("listEntries", b"\xff", 400, "invalid_request"),
        ("getLists", {"tenantUid": "x"}, 400, "invalid_request"),
        ("getLists", {"tenantUid": None}, 400, "invalid_request"),
        ("getLists", {"tenantUuid": TENANT}, 400, "invalid_request"),
        ("addEntries", {"listName": "blocked-senders"}, 400, "invalid_request"),
        ("addEntries", {"listName": "blocked-senders", "entries": ["a@b.org"]}, 400, "invalid_request"),
        ("addEntries", {"listName": "partners", "entries": [{"entry": "a@b", "comment": 1}]}, 400, "invalid_request"),
        ("addEntries", {"listName": "partners", "entries": [{"entry": "a", "comment": "\0"}]}, 400, "invalid_request"),
        ("addEntries", {"listName": "blocked-senders", "entries": [{"entry": "\ud800@b.org"}]}, 409, "invalid_entry"),
        ("addEntries", {"listName": "blocked-senders", "entries": [{"entry": "a b@c\nd"}]}, 409, "invalid_entry"),
        ("addEntries", {"listName": "personal-allowed-senders", "entries": [{"entry": "a@b"}]}, 409, "invalid_entry"),
        ("addEntries", {"listName": "blocked-networks", "entries": [{"entry": "10.0.0.0/99"}]}, 409, "invalid_entry"),
        ("addEntries", {"listName": "blocked-attachments", "entries": [{"entry": "abc"}]}, 409, "invalid_entry"),
        ("addEntries", {"listName": "partners", "entries": [{"entry": ""}]}, 400, "invalid_request"),
        ("addEntries", {"listName": "partners", "entries": [{"entry": "a" * 513}]}, 400, "invalid_request"),
        ("deleteEntries", {"listName": "blocked-senders", "entries": [{"entry": "a@b.org"}]}, 400, "invalid_request"),
        ("addEntries", b" " * (9 * 1024 * 1024), 413, "payload_too_large"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_with_its_own_error(module_lists, operation, body, status, error):
    """Each mistake has a stable error."""
    answer = module_lists.call(operation, body)
    assert (answer.status, answer.json["error"]) == (status, error)


@pytest.fixture(scope="module")
def module_lists(tmp_path_factory):
    with service(tmp_path_factory.mktemp("lists"), LIST_CONFIG, with_key=True) as running:
        client = Lists(running)
        wait_for(lambda: client.call("getLists", {}).status == 200)
        yield client


def test_only_json_is_accepted(module_lists):
    """Any other content type gets 415."""
    answer = module_lists.call("getLists", {}, **{"Content-Type": "text/plain"})
    assert (answer.status, answer.json["error"]) == (415, "not_json")


def test_tokens_and_keys_never_work_for_each_other(module_lists):
    """A scanning token gives no access to lists and an API key cannot scan, under any scheme."""
    key = module_lists.key
    for value in (f"Bearer {TOKEN}", f"apikey {TOKEN}", f"Bearer {key}", "apikey", "", f"apikey {key}0"):
        answer = module_lists.call("getLists", {}, Authorization=value)
        assert (answer.status, answer.json["error"]) == (401, "unauthorized")
    assert module_lists.running.submit(mail(), token=key).status == 401
    assert module_lists.call("getLists", {}, Authorization=f"ApiKey {key}").status == 200


def test_a_new_key_works_immediately(tmp_path):
    """A key that was created a moment ago is accepted; an unknown one is refused."""
    with service(tmp_path, with_key=True) as running:
        for _ in range(5):
            assert Lists(running, key=make_key(running.config)).call("getLists", {}).status == 200
        assert Lists(running, key="0" * 64).call("getLists", {}).status == 401


def test_keys_are_stored_as_hashes_and_can_be_revoked(running, tmp_path):
    """The database never contains a key itself, and a revoked key is refused within a second."""
    from bridge.service.keys import KeyExists, KeyRing

    lists = Lists(running, make_key(running.config, "automation"))
    wait_for(lambda: lists.call("getLists", {}).status == 200)
    for file in tmp_path.glob("*.sqlite*"):
        assert lists.key.encode() not in file.read_bytes()
    store = Store(running.config.database_url)
    store.open()
    with pytest.raises(KeyExists):
        KeyRing(store).create("automation")
    KeyRing(store).revoke("automation")
    assert ("automation", False) in [(k.name, k.revoked_at is None) for k in KeyRing(store).listed()]
    store.close()
    wait_for(lambda: lists.call("getLists", {}).status == 401, SOON_S)


def test_a_blocked_sender_is_bounced_within_a_second(running, lists):
    """An entry takes effect for the next mail and loses its effect when it is deleted."""
    assert running.submit(mail(), sender="Evil@Bad.Example").json["decision"] == "deliver"
    lists.add("blocked-senders", "evil@bad.example")
    wait_for(lambda: running.submit(mail(), sender="Evil@Bad.Example").json["decision"] == "bounce", SOON_S)
    assert running.submit(mail(), sender="Evil@Bad.Example").json["tags"] == [
        "list:blocked-senders",
        "sender:unaligned",
    ]
    lists.delete("blocked-senders", "EVIL@bad.example")
    wait_for(lambda: running.submit(mail(), sender="Evil@Bad.Example").json["decision"] == "deliver", SOON_S)


def test_a_change_by_another_process_is_followed_within_a_second(running, lists):
    """Changes by another service on the same database, or by the command line, are found by polling."""
    other = Store(running.config.database_url)
    other.open()
    from bridge.service.lists.store import Entry

    ListStore(other, running.config.lists).add(GLOBAL, "blocked-domains", [Entry("bad.example", "bad.example")])
    other.close()
    wait_for(lambda: running.submit(mail(), sender="x@sub.bad.example").json["decision"] == "bounce", SOON_S)
    assert running.submit(mail(), sender="x@sub.bad.example").json["tags"] == [
        "list:blocked-domains",
        "sender:unaligned",
    ]


def test_a_tenants_list_applies_only_to_its_own_mail(running, lists):
    """A tenant's entries never affect another tenant's mail."""
    Lists(running, lists.key, TENANT).add("blocked-networks", "192.0.2.0/24", "2001:db8::/32")
    submit = lambda tenant, ip: running.submit(mail(), tenantUid=tenant, remoteAddress=ip).json["decision"]  # noqa: E731
    wait_for(lambda: submit(TENANT, "192.0.2.77") == "bounce", SOON_S)
    assert submit(TENANT, "2001:db8:1::1") == "bounce"
    assert submit(TENANT, "192.0.3.77") == "deliver"
    assert submit(OTHER, "192.0.2.77") == "deliver"


def test_writers_in_several_processes_lose_nothing(database, tmp_path):
    """Concurrent additions from several stores are all saved, and the sizes add up."""
    from bridge.runtime import yaml_file
    from bridge.service.lists.store import Entry
    from bridge.service.settings import ServiceConfig

    config = yaml_file.load(tmp_path / "service.yml", ServiceConfig, _config(database))
    small = [ListDefinition(name="small", category="sender", maxSize=150)]

    def write(worker: int) -> int:
        store = Store(config.database_url)
        store.open()
        lists, added = ListStore(store, small), 0
        for i in range(10):
            try:
                added += lists.add(GLOBAL, "small", [Entry(f"w{worker}-{i}-{k}@x.org", "") for k in range(5)])
            except ListFull:
                break
        store.close()
        return added

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 150
    store = Store(config.database_url)
    store.open()
    changes = ListStore(store, small).changes(0, 150)
    store.close()
    assert len({change.seq for change in changes}) == len(changes) == 150


def test_a_long_list_is_streamed_while_others_are_served(running, lists):
    """A slow reader of a long stream delays no one else, and gets every entry once."""
    lists.fill("blocked-senders")
    with lists.slow_reader("blocked-senders") as slow:
        assert slow.recv(20).startswith(b"HTTP/1.1 200 ")
        assert lists.delete("blocked-senders", "u00000@example.org").json == {"modifiedEntries": 1}
        assert running.submit(mail()).status == 200
        received = b""
        while piece := slow.recv(1 << 20):
            received += piece
    assert received.count(b'"entry"') in (4999, 5000)
    assert received.endswith(b"0\r\n\r\n")
    assert len(lists.entries("blocked-senders")) == 4999


@pytest.mark.parametrize(
    ("list_name", "entry", "advice"),
    [
        ("blocked-senders", "192.0.2.1", "list of networks"),
        ("blocked-senders", "@192.0.2.1.", "user@example.org"),
        ("blocked-senders", "*@[192.0.2.1]", "list of networks"),
        ("blocked-senders", "2001:db8::1", "list of networks"),
        ("blocked-domains", "192.0.2.1", "such as example.org"),
        ("blocked-domains", "@192.0.2.1", "list of networks"),
        ("blocked-senders", "x*@bad.example", "@example.org for a whole domain"),
        ("blocked-senders", "*x@bad.example", "@example.org for a whole domain"),
        ("blocked-senders", "192.0.2.0/24", "user@example.org"),
        ("blocked-senders", "@192.0.2", "list of networks"),
        ("blocked-domains", "192.0.2.", "list of networks"),
        ("personal-blocked-senders", "r@x.org x*@bad.example", "anna@example.org"),
        ("personal-blocked-senders", "*@x.org a@bad.example", "anna@example.org"),
        ("personal-blocked-senders", "r@x.org 192.0.2.1", "list of networks"),
        ("blocked-urls", "http://256.256.256.256/", "example.org"),
    ],
)
def test_what_looks_right_and_never_matches_is_refused(shared_lists, list_name, entry, advice):
    """With the example of a valid entry. Deleting one of earlier times is not hindered."""
    answer = shared_lists.add(list_name, entry)
    assert answer.status == 409 and advice in answer.json["message"], answer
    assert shared_lists.delete(list_name, entry).status == 200


@pytest.mark.parametrize(
    "entry", ["*@bad.example", '"x*"@bad.example', "u@[192.0.2.1]", "1.2.3.4.in-addr.arpa", "4.example"]
)
def test_what_may_match_is_accepted(lists, entry):
    assert lists.add("blocked-senders", entry).json == {"modifiedEntries": 1}


@pytest.mark.parametrize(
    ("list_name", "entry", "traits", "hit"),
    [
        ("blocked-senders", "a@b.org", ("A@B.org", [], None, [], []), True),
        ("blocked-senders", "a@b.org", ("x@y.org", ["a@b.org"], None, [], []), True),
        ("blocked-senders", "@b.org", ("x@b.org", [], None, [], []), True),
        ("blocked-senders", "@b.org", ("x@sub.b.org", [], None, [], []), True),
        ("blocked-senders", "a@b.org", ("", [], None, [], []), False),
        ("allowed-senders", "a@b.org", ("x@y.org", ["a@b.org"], None, [], []), False),
        ("blocked-domains", "b.org", ("x@sub.B.org", [], None, [], []), True),
        ("blocked-domains", "b.org", ("x@notb.org", [], None, [], []), False),
        ("blocked-domains", "xn--mller-kva.example", ("x@müller.example", [], None, [], []), True),
        ("blocked-networks", "192.0.2.0/24", ("", [], "192.0.2.9", [], []), True),
        ("blocked-networks", "192.0.2.0/24", ("", [], "::ffff:192.0.2.9", [], []), True),
        ("blocked-networks", "0.0.0.0/0", ("", [], "2001:db8::1", [], []), False),
        ("blocked-networks", "192.0.2.1/32", ("", [], None, [], []), False),
        ("blocked-urls", "evil.example", ("", [], None, ["www.evil.example"], []), True),
        ("blocked-urls", "evil.example", ("", [], None, ["evil.example.org"], []), False),
        ("blocked-attachments", "a" * 64, ("", [], None, [], ["b" * 64, "a" * 64]), True),
        ("gone-list", "a@b.org", ("a@b.org", [], None, [], []), False),
        ("personal-blocked-senders", "r@x.org a@b.org", ("a@b.org", [], None, [], [], ["R@X.ORG."]), True),
        ("personal-blocked-senders", "r@x.org @b.org", ("", ["a@sub.b.org"], None, [], [], ["r@x.org"]), True),
        ("personal-blocked-senders", "r@x.org a@b.org", ("a@b.org", [], None, [], [], ["r@x.org", "s@x.org"]), False),
        ("personal-blocked-senders", "r@x.org a@b.org", ("a@b.org", [], None, [], [], ["s@x.org"]), False),
        ("personal-blocked-senders", "r@x.org a@b.org", ("a@b.org", [], None, [], [], []), False),
        ("personal-allowed-senders", "r@x.org a@b.org", ("a@b.org", [], None, [], [], ["r@x.org"]), True),
        ("personal-allowed-senders", "r@x.org a@b.org", ("e@e.org", ["a@b.org"], None, [], [], ["r@x.org"]), False),
    ],
)
def test_matching(list_name, entry, traits, hit):
    """Addresses, domains with their subdomains, networks, hosts and hashes each match as documented."""
    index = ListIndex(PREDEFINED, Decisions().allowing(known.name for known in PREDEFINED))
    index.add(GLOBAL, list_name, entry)
    assert index.match(None, traits_of(*traits)) == ([list_name] if hit else [])
    named = hit and not list_name.startswith("personal-")  # whose entries concern their recipients only
    assert index.entry(None, list_name, traits_of(*traits)) == (entry if named else "")
    index.remove(GLOBAL, list_name, entry)
    assert index.match(None, traits_of(*traits)) == []


def test_a_database_of_a_newer_version_is_refused(tmp_path):
    """An old program never changes a database that a newer one created."""
    url = f"sqlite:///{tmp_path / 'x.sqlite'}"
    store = Store(url)
    store.open()
    store.close()
    with sqlite3.connect(tmp_path / "x.sqlite") as raw:
        raw.execute("UPDATE schema_version SET version = :v, oldest_reader = :v", {"v": len(MIGRATIONS) + 1})
    raw.close()
    with pytest.raises(StoreUnavailable, match="newer"):
        Store(url).open()


def test_the_error_of_an_unavailable_database_hides_the_password():
    """The error contains the reason, but not the URL."""
    with pytest.raises(StoreUnavailable) as caught:
        Store("postgresql://user:geheim@127.0.0.1:1/x").open()
    assert "geheim" not in str(caught.value)


def test_migrations_run_once_when_several_start(database, tmp_path):
    """When services start together, only one of them creates the tables."""
    from bridge.runtime import yaml_file
    from bridge.service.settings import ServiceConfig

    config = yaml_file.load(tmp_path / "service.yml", ServiceConfig, _config(database))
    barrier, errors = threading.Barrier(4), []

    def start() -> None:
        store = Store(config.database_url)
        barrier.wait(DEADLINE_S)
        try:
            store.open()
        except Exception as exc:
            errors.append(exc)
        store.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []


def test_scans_continue_when_the_database_is_unavailable(tmp_path):
    """The lists in memory stay in use, scans are answered, and list calls get 503."""
    with service(tmp_path, LIST_CONFIG, with_key=True) as running:
        lists = Lists(running)
        wait_for(lambda: lists.call("getLists", {}).status == 200)
        lists.add("blocked-senders", "evil@bad.example")
        wait_for(lambda: running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce", SOON_S)
        with sqlite3.connect(tmp_path / "service.sqlite") as raw:
            raw.execute("ALTER TABLE list_entry RENAME TO away")
        raw.close()
        assert lists.add("blocked-senders", "more@bad.example").json["error"] == "storage_unavailable"
        assert running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce"
        assert running.submit(mail()).json["decision"] == "deliver"


def test_entries_are_shown_as_they_were_written(lists):
    """Entries are listed in the spelling they were added in, though two spellings are one entry."""
    assert lists.add("blocked-senders", "User@Example.ORG", "@Bad.example").json == {"modifiedEntries": 2}
    assert [e["entry"] for e in lists.entries("blocked-senders")] == ["@Bad.example", "User@Example.ORG"]
    assert lists.add("blocked-senders", "user@example.org").json == {"modifiedEntries": 1}
    assert [e["entry"] for e in lists.entries("blocked-senders")] == ["@Bad.example", "user@example.org"]


def test_lists_and_keys_survive_a_restart(tmp_path, database):
    """A service has loaded its lists before it accepts the first mail."""
    with service(tmp_path, _config(database), with_key=True) as running:
        lists = Lists(running)
        lists.add("blocked-senders", *(f"u{i}@bad.example" for i in range(300)))
        lists.add("blocked-networks", "192.0.2.0/24")
    with service(tmp_path, _config(database)) as running:
        assert running.submit(mail(), sender="u299@bad.example").json["decision"] == "bounce"
        assert running.submit(mail(), remoteAddress="192.0.2.3").json["decision"] == "bounce"
        assert len(Lists(running, lists.key).entries("blocked-senders")) == 300


def test_lost_connections_to_postgresql_are_reopened(tmp_path, postgresql):
    """After the database server has dropped every connection, lists can be changed and are followed as before."""
    url = fresh_database(postgresql)
    with service(tmp_path, _config(url), with_key=True) as running:
        lists = Lists(running)
        lists.add("blocked-senders", "a@bad.example")
        engine = create_engine(running.config.database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            connection.execute(text(f"{others} AND pid <> pg_backend_pid()"))
        engine.dispose()
        wait_for(lambda: lists.add("blocked-senders", "b@bad.example").status == 200)
        wait_for(lambda: running.submit(mail(), sender="b@bad.example").json["decision"] == "bounce")
        wait_for(lambda: running.request("GET", "/readyz").status == 200)
        assert [entry["entry"] for entry in lists.entries("blocked-senders")] == ["a@bad.example", "b@bad.example"]


def test_a_list_that_delivers_mail_never_looks_at_the_from_field(tmp_path):
    """Whatever its name is: the author of a mail chooses what is in From."""
    rules = """
lists:
  - {name: vip-senders, category: sender}
decisions:
  rules:
    - {tags: ["list:vip-senders"], verdict: vip, decision: deliver}
  otherwise: quarantine
"""
    with service(tmp_path, CONFIG + rules, with_key=True) as running:
        lists = Lists(running)
        wait_for(lambda: lists.call("getLists", {}).status == 200)
        entry = {"listName": "vip-senders", "entries": [{"entry": "boss@bank.example"}]}
        assert lists.call("addEntries", entry).status == 200
        wait_for(lambda: running.submit(mail(), sender="boss@bank.example").json["decision"] == "deliver")
        forged = running.submit(mail(From="boss@bank.example"), sender="x@evil.example").json
        assert (forged["decision"], forged["tags"]) == ("quarantine", ["sender:impossible-domain", "sender:unaligned"])


@pytest.mark.parametrize(
    ("definition", "rules"),
    [
        ("{name: allowed-urls, category: url}", ""),
        ("{name: allowed-files, category: attachment}", ""),
        ("{name: ours, category: url}", 'decisions: {rules: [{tags: ["list:*"], verdict: ok, decision: deliver}]}\n'),
    ],
)
def test_one_link_or_file_cannot_get_a_whole_mail_delivered(definition, rules):
    """Such a configuration is refused: a program beside the link would be delivered, too."""
    with pytest.raises(ValidationError, match="does not make a whole mail safe"):
        ServiceConfig.model_validate(yaml.safe_load(f"lists: [{definition}]\n{rules}"))


@pytest.mark.parametrize(
    ("entry", "stored"),
    [
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ],
)
def test_an_ipv4_network_written_as_ipv6_is_stored_as_ipv4(entry, stored):
    """Clients are compared by their IPv4 address, so the entry would never match."""
    assert normalise("network", entry) == stored


def test_the_answer_names_the_entry_that_matched(tmp_path):
    """A postmaster saw the name of the list, and had to guess which of its entries it was."""
    mail = b"From: x@other.example\r\nSubject: x\r\n\r\nhello\r\n"
    with service(tmp_path, CONFIG, with_key=True) as running:
        assert "listMatches" not in running.submit(mail, sender="a@sub.sender.example").json
        assert Lists(running).add("blocked-senders", "@sender.example").status == 200
        assert Lists(running).add("blocked-networks", "192.0.2.0/24").status == 200

        def matches():
            answer = running.submit(mail, sender="a@sub.sender.example", remoteAddress="192.0.2.7").json
            return {match["listName"]: match["entry"] for match in answer.get("listMatches", ())}

        wanted = {"blocked-networks": "192.0.2.0/24", "blocked-senders": "@sender.example"}
        until(lambda: matches() == wanted, "the entries to be named")


@pytest.mark.parametrize(
    ("entry", "stored"),
    [
        ("http://3221226219/login", "192.0.2.235"),
        ("http://0xc0.0.0x2eb/", "192.0.2.235"),
        ("0300.0.2.0353", "192.0.2.235"),
        ("http://evil.example\\@good.example/", "evil.example"),
        ("http:\\\\evil.example\\path", "evil.example"),
        ("https:/evil.example/x", "evil.example"),
        ("https:evil.example", "evil.example"),
        ("HTTP:////evil.example", "evil.example"),
        ("evil.example/?to=http://good.example/", "evil.example"),
        ("http://good.example:x@evil.example:8080#good.example", "evil.example"),
        ("//evil.example", "evil.example"),
        ("*.evil.example", "evil.example"),
        ("[2001:DB8::1]:8080", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("http://[::ffff:192.0.2.1]/", "192.0.2.1"),
        ("12345.example", "12345.example"),
    ],
)
def test_an_entry_about_a_deceptive_link_was_about_another_host(entry, stored):
    """The links in mail were read as browsers read them, and the entries were not: one never matched, or blocked a
    host that the link only pretended to lead to."""
    assert normalise("url", entry) == stored
    if entry.lower().startswith("http"):
        links = Links(100)
        links.scan(f'<a href="{ascii_lower(entry)}">', is_html=True)
        assert stored in links.hosts


def test_an_entry_of_an_earlier_version_can_be_deleted(running, lists):
    """Its host was not read as browsers read it."""
    store = Store(running.config.database_url)
    store.open()
    old = Entry("good.example", "http://evil.example\\@good.example/")
    ListStore(store, []).add(GLOBAL, "blocked-urls", [old])
    store.close()
    assert lists.entries("blocked-urls") == [{"entry": old.shown, "comment": ""}]
    assert lists.delete("blocked-urls", old.shown).json == {"modifiedEntries": 1}
    assert lists.entries("blocked-urls") == []
    lists.add("blocked-urls", "good.example")
    assert lists.delete("blocked-urls", old.shown).json == {"modifiedEntries": 0}, "another entry"


def test_an_entry_of_an_earlier_version_stayed_beside_the_right_one(running, lists):
    """It was added again, as the release notes say, and the host that it only pretended to be about stayed blocked."""
    store = Store(running.config.database_url)
    store.open()
    old = Entry("good.example", "http://evil.example\\@good.example/")
    ListStore(store, []).add(GLOBAL, "blocked-urls", [old])
    assert lists.add("blocked-urls", old.shown).json == {"modifiedEntries": 1}
    assert [entry["entry"] for entry in lists.entries("blocked-urls")] == [old.shown]
    assert [entry for _, name, entry in ListStore(store, []).everything() if name == "blocked-urls"] == ["evil.example"]
    store.close()


def test_a_mask_of_zeros_allowed_the_whole_internet(lists):
    """In some notations, 192.0.2.1/0.0.0.0 is one address. Deleting one of earlier times is not hindered."""
    answer = lists.add("allowed-networks", "192.0.2.1/0.0.0.0")
    assert (answer.status, answer.json["error"]) == (409, "invalid_entry")
    assert lists.add("allowed-networks", "0.0.0.0/0").json == {"modifiedEntries": 1}
    assert lists.delete("allowed-networks", "192.0.2.1/0.0.0.0").json == {"modifiedEntries": 1}


@pytest.mark.parametrize("piece", [b"{}", b"[]"])
def test_a_request_of_a_million_objects_stopped_all_scans(module_lists, piece):
    """For more than a second. 500 entries with brackets in their comments are not meant."""
    body = b'{"listName": "partners", "entries": [' + b",".join([piece] * 1_000_000) + b"]}"
    answer = module_lists.call("addEntries", body)
    assert (answer.status, answer.json["error"]) == (400, "invalid_request")
    entries = [{"entry": f"{number}@example.org", "comment": '"\\[{' * 400} for number in range(500)]
    assert module_lists.call("addEntries", {"listName": "blocked-senders", "entries": entries}).status == 200


def test_list_requests_without_limit_took_the_memory_of_the_service(running):
    """Each may need some megabytes, for its body or for the entries that its client does not read."""
    lists = Lists(running)
    head = (
        f"POST /api/public/lists/v1/getLists HTTP/1.1\r\nHost: x\r\nAuthorization: apikey {lists.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(MAX_REQUESTS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S))
            slow.sendall(head.encode())
        wait_for(lambda: lists.call("getLists", {}).status == 503)
        answer = lists.add("blocked-senders", "evil@bad.example")
        assert (answer.status, answer.json["error"], answer.headers["Retry-After"]) == (503, "saturated", "1")
        assert running.submit(mail()).status == 200
    wait_for(lambda: lists.call("getLists", {}).status == 200)
