"""Files that somebody else has put into our directories are not trusted, and the error names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.config.model import Config
from bridge.daemon import directories, named_files, wiring
from bridge.digests.signed_links import LinkKeys
from bridge.errors import BridgeError, ConfigError
from bridge.events.outbox import Outbox
from bridge.history import segment_files
from bridge.history.segment_files import MERGING
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryError
from bridge.quarantine.index import Index
from bridge.quarantine.local_store import LocalStore
from bridge.runtime import durable_files, root_as_owner
from bridge.runtime.database import Database
from tests.history.history_kit import find, mail
from tests.requirements import need, need_python_for_all

NOBODY, DAEMON = 65534, 2  # `bin` of every Debian stands for the daemon's user


@pytest.fixture
def state() -> Iterator[Path]:
    """A directory of the daemon's user; the tests run with its rights."""
    need(root=True)
    with tempfile.TemporaryDirectory(prefix="scanbridge-tests-") as name:
        directory = Path(name) / "state"
        directory.mkdir(mode=0o700)
        os.chown(directory, DAEMON, DAEMON)
        with root_as_owner.acting_for(directory):
            assert root_as_owner.current_user() == DAEMON
            yield directory


def give_away(path: Path) -> None:
    with root_as_owner.as_operator():
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o666)


USERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "secret": ("log-key", lambda state: named_files.make_secret(state / "log-key", "log.addresses")),
    "secret that is read": ("release-key", lambda state: named_files.read_own_secret(state / "release-key", "key")),
    "keys of links": ("digest-keys", lambda state: LinkKeys(state / "digest-keys").keys),
    "outbox": ("events.sqlite", lambda state: Outbox(Database.file(state / "events.sqlite")).states()),
    "journal of the outbox": (
        "events.sqlite-wal",
        lambda state: Outbox(Database.file(state / "events.sqlite")).states(),
    ),
    "index": ("index.sqlite", lambda state: Index(Database.file(state / "index.sqlite")).known()),
    "record": ("q.json", lambda state: LocalStore(state).read("q")),
    "later": ("later.db", lambda state: SqliteHistory(state).later(["x"])),
}


@pytest.mark.parametrize("use", USERS)
def test_a_file_of_another_user_was_trusted(state: Path, use: str) -> None:
    """It was put there before the first start, while the directory was open to others."""
    name, work = USERS[use]
    (state / name).write_text("a" * 64)
    give_away(state / name)
    with pytest.raises(BridgeError, match="belongs to another user"):
        work(state)
    assert (state / name).read_text() == "a" * 64


def test_a_segment_of_another_user_was_searched_and_continued(state: Path) -> None:
    history = SqliteHistory(state)
    history.append([mail(1)])
    history.close()
    (live,) = segment_files.live_files(state)
    give_away(live)
    with pytest.raises(HistoryError, match="belongs to another user"):
        SqliteHistory(state).append([mail(2)])
    with pytest.raises(HistoryError, match="belongs to another user"):
        find(SqliteHistory(state))


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "problem"),
    [
        (0o700, DAEMON, DAEMON, ""),
        (0o770, DAEMON, DAEMON, ""),  # its own group
        (0o770, 0, NOBODY, ""),  # an administrator's choice, as Kubernetes makes it
        (0o770, DAEMON, NOBODY, "is writable by another group"),
        (0o777, DAEMON, DAEMON, "is writable by every user"),
        (0o1777, 0, 0, "is writable by every user"),
        (0o777, NOBODY, DAEMON, "belongs to another user (65534)"),
    ],
)
def test_a_directory_in_which_others_can_write_is_refused(
    state: Path, mode: int, uid: int, gid: int, problem: str
) -> None:
    directory = state / "q"
    with root_as_owner.as_operator():
        directory.mkdir()
        os.chown(directory, uid, gid)
        directory.chmod(mode)
    assert durable_files.others_who_write(directory) == problem
    if problem:
        with pytest.raises(ConfigError) as error:
            directories.make_directory(directory, "quarantine.directory")
        assert str(error.value).startswith(f"quarantine.directory: {directory} {problem}")


def test_any_group_of_the_daemon_may_write(tmp_path: Path) -> None:
    """Only the first one counted, so that a directory for the mail server's group was refused."""
    need_python_for_all()
    with tempfile.TemporaryDirectory(prefix="scanbridge-tests-") as name:
        os.chown(name, DAEMON, 4242)
        Path(name).chmod(0o2770)
        assert run_as_daemon(f"print(durable_files.others_who_write(Path({name!r})))", "4242") == "\n"
        assert run_as_daemon(f"print(durable_files.others_who_write(Path({name!r})))", "4243") != "\n"


def run_as_daemon(program: str, groups: str = "2", prefix: tuple[str, ...] = ()) -> str:
    setup = (
        "from pathlib import Path; from bridge.daemon import directories; from bridge.runtime import durable_files; "
    )
    ids = ["setpriv", "--reuid", str(DAEMON), "--regid", str(DAEMON), "--groups", groups]
    command = [*prefix, *ids, sys.executable, "-c", setup + program]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize(("mode", "outcome"), [("0777", "warned"), ("2777", "warned"), ("1777", "refused")])
def test_a_volume_that_is_open_to_all_kept_the_bridge_from_starting(tmp_path: Path, mode: str, outcome: str) -> None:
    """An emptyDir of Kubernetes has mode 0777, and only its node can change that."""
    need("unshare")
    need_python_for_all()
    script = f'mount -t tmpfs -o mode={mode} tmpfs /mnt && exec "$@"'
    program = "directories.make_directory(Path('/mnt'), 'state_directory'); "
    program += "directories.make_directory(Path('/mnt/state'), 'state_directory'); print('started')"
    said = run_as_daemon(program, prefix=("unshare", "--mount", "sh", "-c", script, "sh"))
    problem = "state_directory: /mnt is writable by every user"
    assert problem in said and "such as /mnt/state: scanbridge creates it with access only for itself" in said
    assert said.count(problem) == 1
    assert said.endswith("started\n") == (outcome == "warned")


def test_a_directory_of_ours_that_all_can_write_to_needs_chmod(state: Path) -> None:
    state.chmod(0o777)
    with pytest.raises(ConfigError, match=f"others could replace the files in it; run chmod go-w {state}$"):
        directories.make_directory(state, "state_directory")


def test_a_maildir_of_another_user_and_our_group_was_refused(state: Path) -> None:
    """The user of the mail store owns it, and the bridge may write to it by its group."""
    maildir = state / "Maildir"
    with root_as_owner.as_operator():
        maildir.mkdir()
        os.chown(maildir, NOBODY, DAEMON)
        maildir.chmod(0o2770)
    conf = Config.model_validate(
        {
            "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "t"},
            "listeners": [{"name": "mx", "address": "127.0.0.1:2"}],
            "relay": {"next_hop": f"maildir:{maildir}"},
        }
    )
    assert conf.relay is not None
    assert wiring.next_hop(conf, conf.relay, conf.relay.hops[0]) is not None


def test_root_does_not_start_the_daemon_in_the_directory_of_another_user(tmp_path: Path) -> None:
    """It would use whatever that user puts there."""
    need(root=True)
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user"):
        directories.make_directory(tmp_path, "state_directory")


def test_links_of_an_administrator_are_followed(state: Path) -> None:
    with root_as_owner.as_operator():
        (state / "key").symlink_to(state / "elsewhere")
    (state / "elsewhere").write_text("0123456789abcdef")
    assert named_files.read_own_secret(state / "key", "key") == "0123456789abcdef"


# The history's note about a merge

PART, OTHER, MERGED = (f"{1_800_000_000_000 + n}-{1_800_000_000_000 + n}-{n:08x}.sqlite" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b"null", "is damaged"),
        (b'{"merged": 1, "parts": 2}', "is damaged"),
        (b"\xff", "is damaged"),
        (json.dumps({"merged": MERGED, "parts": ["../../precious"]}).encode(), "not segments"),
        (json.dumps({"merged": "/etc/passwd", "parts": [PART]}).encode(), "not segments"),
        (json.dumps({"merged": MERGED, "parts": [{}]}).encode(), "not segments"),
        (b" " * (2 << 20), "larger than"),
    ],
)
def test_a_note_about_a_merge_that_is_not_ours_fails_loudly(tmp_path: Path, content: bytes, problem: str) -> None:
    """A day was counted twice, or files outside of the history were deleted."""
    (tmp_path / "precious").write_text("precious")
    directory = tmp_path / "a" / "history"
    history = SqliteHistory(directory)
    history.append([mail(1)])
    (directory / MERGING).write_bytes(content)
    for work in (lambda: find(history), lambda: history.maintain(0.0, None)):
        with pytest.raises(HistoryError, match=problem) as error:
            work()
        assert str(directory / MERGING) in str(error.value)
    assert (tmp_path / "precious").exists() and (directory / MERGING).exists()
    (directory / MERGING).unlink()
    assert find(history) == ["ID0001"]
    history.close()


def test_a_note_about_a_merge_from_another_user_fails_loudly(state: Path) -> None:
    history = SqliteHistory(state)
    history.append([mail(1)])
    (state / MERGING).write_text(json.dumps({"merged": MERGED, "parts": [PART, OTHER]}))
    give_away(state / MERGING)
    with pytest.raises(HistoryError, match="belongs to another user"):
        find(history)
    history.close()
