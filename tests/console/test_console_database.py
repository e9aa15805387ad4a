"""The console's tables in SQLite and in PostgreSQL: the same behaviour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select, text, update

from bridge.cli.console import command
from bridge.console import database
from bridge.console.audit import DONE, MAX_STRANGERS, OTHERS, STRANGERS_S, Audit
from bridge.console.database import ConsoleStore, ConsoleStoreError
from bridge.console.process import delete_old_entries
from bridge.console.roles import Person, Role
from bridge.console.sessions import SessionLimits, Sessions, SignInLinks, find_password_link
from bridge.console.sign_in_attempts import MAX_PER_USER, Attempts
from bridge.console.users import Proven, UserMistake, Users
from bridge.quarantine.purge_guard import ClockInDoubt, PurgeGuard
from bridge.runtime.database import Database
from tests.long_cases import by_turns, few
from tests.postgresql import fresh_database, postgresql  # noqa: F401  a fixture
from tests.quarantine.small_disk import small_disk

ANN = Person("ann", Role.RELEASER, frozenset({"t1", "t2"}))


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConsoleStore]:
    if request.param == "sqlite":
        made = ConsoleStore(Database.file(tmp_path / "console.sqlite"))
    else:
        made = ConsoleStore(Database(fresh_database(request.getfixturevalue("postgresql"))))
    yield made
    made.close()


@pytest.mark.parametrize("store", few(["sqlite", "postgresql"], 1), indirect=True)
def test_users_come_and_go(store: ConsoleStore) -> None:
    """A hash is stored, never the password."""
    users = Users(store)
    users.add("ann", "a long password", Role.RELEASER, ANN.tenants)
    proven = users.verify("ann", "a long password")
    assert proven is not None and proven.person == ANN
    assert users.verify("ann", "another") is None and users.verify("bob", "a long password") is None
    with pytest.raises(UserMistake, match="already"):
        users.add("ann", "a long password", Role.ADMIN)
    (listed,) = users.listed()
    assert listed.person == ANN and listed.seen_at > 0 and listed.has_password
    users.remove("ann")
    assert users.listed() == [] and users.verify("ann", "a long password") is None


def test_a_clock_that_jumps_ahead_deleted_the_whole_audit_log(store: ConsoleStore) -> None:
    """As for the quarantine, a day passes before anything is deleted by such a clock."""
    audit, now = Audit(store), [time.time()]
    audit.write(ANN, "192.0.2.1", "deleted")
    guard = PurgeGuard(lambda: now[0], what="old entries of the audit log will be deleted", now="")
    delete_old_entries(audit, 60.0, guard)
    now[0] += 60 * 86400
    with pytest.raises(ClockInDoubt, match=r"old entries of the audit log will be deleted in 24 hours$"):
        delete_old_entries(audit, -60.0, guard)
    assert len(audit.find()) == 1
    delete_old_entries(audit, -60.0, PurgeGuard())
    assert audit.find() == []


@pytest.mark.parametrize(
    ("change", "store"),
    by_turns(["removed", "another password", "another role"], ["sqlite", "postgresql"]),
    indirect=["store"],
)
def test_a_session_begins_only_if_the_user_is_still_the_same(store: ConsoleStore, change: str) -> None:
    """Something happens between the password and the session."""
    users, sessions = Users(store), Sessions(store, SessionLimits(60, 600))
    users.add("ann", "a long password", ANN.role, ANN.tenants)
    proven = users.verify("ann", "a long password")
    assert proven is not None and sessions.begin(ANN, "192.0.2.1", "", proven.is_still_true)
    if change == "another password":
        users.set_password("ann", "another long password")
    else:
        users.remove("ann")
    if change == "another role":
        users.add("ann", "a long password", Role.VIEWER, ANN.tenants)
    assert sessions.begin(ANN, "192.0.2.1", "", proven.is_still_true) == "" and sessions.listed() == []
    assert sessions.begin(ANN, "192.0.2.1", "", Proven(ANN).is_still_true) == "" or change == "another password"


def test_an_entry_is_written_whatever_is_in_its_text(store: ConsoleStore) -> None:
    """NUL and half a character, which a database does not keep."""
    audit = Audit(store)
    number = audit.write(ANN, "192.0.2.1", "deleted", detail="a\0b\ud800c")
    assert audit.find()[0].detail == "a?b?c"
    audit.finish(number, DONE, "\0")
    assert audit.find(name="ann", action="deleted")[0].detail == "?" and audit.find(name="\0") == []


def test_a_user_without_a_password_has_none(store: ConsoleStore) -> None:
    """Not even the empty one."""
    users = Users(store)
    users.add("demo", None, Role.ADMIN)
    assert users.verify("demo", "") is None and users.verify("demo", "nobody has this password") is None


def test_sessions_of_the_same_name_are_told_apart(store: ConsoleStore) -> None:
    """A local user and a person of the provider may be called the same."""
    sessions = Sessions(store, SessionLimits(60, 600))
    other = Person("ann", Role.VIEWER, None, "https://login.example.org", "s1")
    own, others = sessions.begin(ANN, "192.0.2.1", "x"), sessions.begin(other, "192.0.2.2", "y")
    assert [each.person for each in sessions.listed(ANN)] == [ANN] and len(sessions.listed()) == 2
    label = sessions.listed(other)[0].label
    assert sessions.revoke(label, ANN) == "" and sessions.find(others) is not None
    Users(store).add("ann", "a long password", Role.VIEWER)
    Users(store).remove("ann")
    assert sessions.find(own) is None and sessions.find(others) is not None
    assert sessions.revoke(label) == "ann" and sessions.find(others) is None


def test_a_person_of_the_provider_is_known_by_the_subject(store: ConsoleStore) -> None:
    """A person who is renamed keeps the sessions; a person who gets the old name sees none of them."""
    sessions, audit = Sessions(store, SessionLimits(60, 600)), Audit(store)
    before = Person("ann", Role.VIEWER, None, "https://login.example.org", "s1")
    renamed, successor = replace(before, name="anne"), replace(before, subject="s2")
    token = sessions.begin(before, "192.0.2.1", "x")
    (own,) = sessions.listed(renamed)
    assert own.person == before and own.person.key == renamed.key != successor.key
    assert sessions.listed(successor) == [] and sessions.revoke(own.label, successor) == ""
    assert sessions.revoke(own.label, renamed) == "ann" and sessions.find(token) is None
    for person in (before, successor, renamed):
        audit.write(person, "192.0.2.1", "looked", mail=person.signature[:64])
    assert [entry.name for entry in audit.find(name="s1")] == ["anne (login.example.org)", "ann (login.example.org)"]
    assert [entry.subject for entry in audit.find(name="ann (login.example.org)")] == ["s2", "s1"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_sessions_without_a_subject_end_with_the_upgrade(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """They name a person only by a name that may be somebody else's by now. Local users and the audit log stay."""
    place = Database.file(tmp_path / "console.sqlite")
    if kind == "postgresql":
        place = Database(fresh_database(request.getfixturevalue("postgresql")))
    with closing(ConsoleStore(place)) as store:
        sessions = Sessions(store, SessionLimits(60, 600))
        local, others = (
            sessions.begin(person, "192.0.2.1", "x") for person in (ANN, replace(ANN, provider="https://p"))
        )
        Audit(store).write(ANN, "192.0.2.1", "looked")
        assert sessions.find(others) is None  # an older process may have added it beside us
        with store.writing() as connection:  # as version 1 left it
            connection.execute(text("DROP INDEX console_audit_subject"))
            for table, column in (("session", "subject"), ("audit", "subject"), ("audit", "provider")):
                connection.execute(text(f"ALTER TABLE console_{table} DROP COLUMN {column}"))
            connection.execute(text("UPDATE console_schema SET version = 1"))
    with closing(ConsoleStore(place)) as store:
        sessions = Sessions(store, SessionLimits(60, 600))
        found = sessions.find(local)
        assert found is not None and found.person == ANN and sessions.listed() == [found]
        (entry,) = Audit(store).find(name="ann")
        assert (entry.provider, entry.subject) == ("", "")
        assert sessions.begin(replace(ANN, provider="https://p", subject="s1"), "192.0.2.1", "x")


def test_a_person_has_a_limited_number_of_sessions(store: ConsoleStore) -> None:
    """The oldest ends."""
    sessions = Sessions(store, SessionLimits(60, 600))
    tokens = [sessions.begin(ANN, "192.0.2.1", "x") for _ in range(52)]
    assert (
        sessions.find(tokens[0]) is None and sessions.find(tokens[1]) is None and sessions.find(tokens[2]) is not None
    )


def test_a_link_is_used_once_also_by_many_at_the_same_time(store: ConsoleStore) -> None:
    """One of them signs in."""
    Users(store).add("ann", None, Role.VIEWER)
    token = SignInLinks(store).make("ann")
    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(SignInLinks(store).use, [token] * 8))
    assert sum(person is not None for person in used) == 1


def test_many_attempts_at_the_same_time_are_counted(store: ConsoleStore) -> None:
    """None of them slips through while the others are being tried."""
    attempts = Attempts(store)
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: attempts.admit("ann", "192.0.2.1"), range(MAX_PER_USER + 10)))
    assert sum(wait == 0 for wait in waits) == MAX_PER_USER
    attempts.succeeded("ann", "192.0.2.1")
    assert attempts.admit("ann", "192.0.2.1") == 0


def test_a_clock_that_was_ahead_locks_nobody_out_and_keeps_nobody_in(
    store: ConsoleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts of next year had to be waited for, and sessions and links lasted until then."""
    attempts, sessions, links = Attempts(store), Sessions(store, SessionLimits(60, 600)), SignInLinks(store)
    Users(store).add("ann", "a long password", Role.RELEASER, ANN.tenants)
    right = time.time

    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: right() + 365 * 86_400)
        waits = [attempts.admit("ann", "192.0.2.1") for _ in range(MAX_PER_USER + 1)]
        assert waits[0] == 0 and waits[-1] > 0
        token, link, chosen = sessions.begin(ANN, "192.0.2.1", "x"), links.make("ann"), links.make_for_password("ann")
        assert sessions.find(token) is not None
    assert attempts.admit("ann", "192.0.2.1") == 0
    assert sessions.find(token) is None and sessions.listed() == []
    assert links.use(link) is None
    with store.reading() as connection:
        assert find_password_link(connection, chosen) == ""

    with monkeypatch.context() as ahead:  # the clock of another machine
        ahead.setattr(time, "time", lambda: right() + 60)
        token, link = sessions.begin(ANN, "192.0.2.1", "x"), links.make("ann")
    assert sessions.find(token) is not None and links.use(link) is not None


def test_the_audit_log_is_read_in_pages_and_ends(store: ConsoleStore) -> None:
    """The newest first; old entries are deleted."""
    audit = Audit(store)
    numbers = [audit.write(ANN, "192.0.2.1", "looked", mail=f"M{number}") for number in range(5)]
    audit.finish(numbers[2], DONE, "x" * 2000)
    page = audit.find(limit=2)
    assert [entry.mail for entry in page] == ["M4", "M3"]
    assert [entry.mail for entry in audit.find(limit=2, before=page[-1].seq)] == ["M2", "M1"]
    assert audit.find(mail="M2")[0].detail == "x" * 1000
    assert audit.delete_before(time.time() + 1) == 5 and audit.find() == []


def test_a_database_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """Without its address, which may have a password."""
    with pytest.raises(ConsoleStoreError, match="cannot be used") as found:
        Users(ConsoleStore(Database("postgresql://user:secret@127.0.0.1:1/x"), wait_s=0.5)).listed()
    assert "secret" not in str(found.value)


def test_strangers_from_many_addresses_do_not_fill_the_audit_log(store: ConsoleStore) -> None:
    """Attempts were limited for each address only, and an attacker has many."""
    audit = Audit(store)
    for number in range(MAX_STRANGERS + 7):
        audit.write_stranger(f"2001:db8:{number:x}::1", "signed in", name=f"name{number}")
    audit.write(ANN, "192.0.2.1", "signed in")
    entries = audit.find(limit=1000)
    assert len(entries) == MAX_STRANGERS + 2
    assert [(entry.action, entry.detail) for entry in entries[:2]] == [("signed in", ""), (OTHERS, "7 more attempts")]
    with store.writing() as connection:  # a quarter of an hour later
        for table in (database.attempts, database.audit):
            connection.execute(update(table).values(at=table.c.at - STRANGERS_S - 1))
    audit.write_stranger("192.0.2.2", "signed in", name="later")
    assert [entry.name for entry in audit.find(limit=1)] == ["later"]
    with store.reading() as connection:
        assert connection.execute(select(func.count()).select_from(database.attempts)).scalar_one() == 1


def test_strangers_at_the_pages_for_users_could_hide_who_guesses_passwords_at_the_console(store: ConsoleStore) -> None:
    audit = Audit(store)
    for _ in range(MAX_STRANGERS + 7):
        audit.write_stranger("192.0.2.1", "signed in with the provider", name="user unknown", pages="users")
    audit.write_stranger("192.0.2.2", "signed in", name="adm")
    assert [entry.name for entry in audit.find(limit=1)] == ["adm"]


def test_the_console_beside_the_default_starts_on_a_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended, because its sign-in link could not be stored, when an operator wanted to see what was wrong."""
    with small_disk(tmp_path / "disk", 4096) as disk:
        (disk / "everything").write_bytes(bytes(4096))
        store = ConsoleStore(Database.file(disk / "console.sqlite"))
        sources = SimpleNamespace(users=Users(store), links=SignInLinks(store))
        command._say_link(SimpleNamespace(), sources)  # type: ignore[arg-type]
        store.close()
    said = capsys.readouterr()
    assert "no sign-in link can be created" in said.err
    assert "scanbridge console link demo" in said.out and "/enter/" not in said.out
