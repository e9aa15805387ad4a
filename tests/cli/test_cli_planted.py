"""Root's commands in a state directory of another user do only what that user could do himself."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.daemon import directories
from bridge.runtime import output_file, root_as_owner
from bridge.testing import until
from tests.long_cases import few
from tests.requirements import need

NOBODY = 65534
CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:2"}}]
relay: {{next_hop: "smtp://127.0.0.1:3"}}
admin: {{address: "127.0.0.1:4"}}
console: {{address: "127.0.0.1:5"}}
digests: {{schedule: daily, from: "q@example.org", domains: [example.org]}}
personal_lists: {{allow_by: administrators}}
log: {{addresses: hashed}}
events: [{{name: siem, type: file, path: events.jsonl}}]
state_directory: {state}
"""
MAIL = b"From: a@example.org\r\nSubject: x\r\nMessage-ID: <1@example.org>\r\n\r\nx\r\n"
COMMANDS = {
    "history": ["history"],
    "explain": ["explain", "a@example.org"],
    "stats": ["stats"],
    "quarantine": ["quarantine", "list"],
    "purge": ["quarantine", "purge", "--older-than", "1d", "--yes"],
    "events": ["events", "status"],
    "events test": ["events", "test"],
    "personal lists": ["lists", "personal", "add", "block", "me@example.org", "a@example.org"],
    "console user": ["console", "user", "list"],
    "digest": ["digest", "keys", "rotate"],
    "address": ["config", "address", "a@example.org"],
    "check": ["check"],
    "report": ["report", "spam", "{mail}"],
}


_EXPECTED = {"explain": (3,), "check": (1,), "report": (0, 1)}


@pytest.fixture(params=["reachable", "closed"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Below a directory that everybody may enter, or only root, as systemd's /var/lib/private."""
    need(root=True)
    with tempfile.TemporaryDirectory(prefix="scanbridge-tests-") as name:
        directory = Path(name)
        directory.chmod(0o755 if request.param == "reachable" else 0o700)
        (directory / "token").write_text("0123456789abcdef")
        (directory / "token").chmod(0o600)
        (directory / "mail.eml").write_bytes(MAIL)
        (directory / "mail.eml").chmod(0o600)
        (directory / "bridge.yml").write_text(CONFIG.format(state=directory / "state"))
        yield directory


def state_of_nobody(place: Path) -> Path:
    state = place / "state"
    if state.exists():
        shutil.rmtree(state)
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    return state


def run(place: Path, command: list[str]) -> Result:
    words = [word.replace("{mail}", str(place / "mail.eml")) for word in command]
    return CliRunner().invoke(main, [*words, "-c", str(place / "bridge.yml")])


def names_below(directory: Path) -> list[Path]:
    return [path.relative_to(directory) for path in directory.rglob("*")]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_root_creates_belongs_to_the_owner(place: Path, command: str) -> None:
    """The daemon could not use what root had created."""
    state = state_of_nobody(place)
    done = run(place, COMMANDS[command])
    assert done.exit_code in _EXPECTED.get(command, (0,)), done.output
    assert {path.lstat().st_uid for path in state.rglob("*")} <= {NOBODY}
    assert os.stat(place).st_uid == 0 and root_as_owner.current_user() == 0


@pytest.fixture
def victim(place: Path) -> Path:
    """A database of root, which only root may read."""
    path = place / "closed" / "victim"
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (x)")
    connection.commit()
    connection.close()
    path.chmod(0o600)
    return path


def plant(place: Path, names: list[Path], kind: str, victim: Path) -> None:
    state = state_of_nobody(place)
    for name in names:
        for parent in reversed(name.parents[:-1]):
            (state / parent).mkdir(exist_ok=True)
            os.chown(state / parent, NOBODY, NOBODY)
        if kind == "second name":
            os.link(victim, state / name)
            continue
        (state / name).symlink_to({"link": victim, "new": victim.with_name("new"), "directory": victim.parent}[kind])
        os.chown(state / name, NOBODY, NOBODY, follow_symlinks=False)


@pytest.mark.parametrize("command", few(COMMANDS, 5))
def test_root_created_and_changed_what_planted_names_lead_to(place: Path, victim: Path, command: str) -> None:
    """Databases, their journals, keys and directories: each leads to a place where only root may write."""
    state, before = state_of_nobody(place), victim.read_bytes()
    run(place, COMMANDS[command])
    known = names_below(state)
    files = [path for path in known if not (state / path).is_dir()]
    journals = [path.with_name(path.name + end) for path in files for end in ("-wal", "-shm", "-journal")]
    directories = [path for path in known if path not in files and path.parent == Path()]
    planted = [(names, kind) for names in (files, journals) for kind in ("link", "new", "second name")]
    for names, kind in [*planted, (directories, "directory")]:
        if names:
            plant(place, names, kind, victim)
            done = run(place, COMMANDS[command])
            assert names_below(victim.parent) == [Path("victim")], f"{kind} for {names}: {done.output}"
    found = victim.stat()
    assert victim.read_bytes() == before
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)


def test_root_still_writes_where_the_operator_says(place: Path) -> None:
    """A chart goes to a directory in which only root may write, and the token that only root may read is found."""
    state_of_nobody(place)
    (place / "out").mkdir(mode=0o700)
    done = run(place, ["stats", "--by", "hour", "--plot", str(place / "out" / "chart.svg")])
    assert done.exit_code == 0, done.output
    assert (place / "out" / "chart.svg").stat().st_uid == 0
    assert "token" not in run(place, ["check"]).output


def test_root_overwrote_its_own_file_through_a_link_at_the_place_of_a_chart(place: Path, victim: Path) -> None:
    """Another user has planted a link in their own directory, where the operator wants the chart: it is replaced."""
    state, before = state_of_nobody(place), victim.read_bytes()
    chart = state / "week.svg"
    chart.symlink_to(victim)
    done = run(place, ["stats", "--by", "hour", "--plot", str(chart)])
    assert done.exit_code == 0, done.output
    assert victim.read_bytes() == before and not chart.is_symlink() and stat.S_IMODE(chart.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_chart_for_standard_output_is_no_file_in_dev(tmp_path: Path, name: str) -> None:
    """Standard output may lead to a file: then /dev/stdout looks like one, and must not be replaced."""
    code = f"from bridge.runtime import output_file as o; from pathlib import Path; o.write(Path('{name}'), 'x')"
    for _ in range(2):
        with (tmp_path / "chart").open("ab") as chart:
            subprocess.run([sys.executable, "-c", code], stdout=chart, check=True)
    assert (tmp_path / "chart").read_text() == "xx" and Path("/dev/stdout").is_symlink()


def test_a_link_that_took_the_place_of_a_socket_was_followed(tmp_path: Path) -> None:
    """Between the look at what is there and its opening: one of some hundred charts overwrote a file of root."""
    victim, chart = tmp_path / "victim", tmp_path / "chart.svg"
    victim.write_text("mine")
    code = """
import os, socket, sys
os.chdir(sys.argv[1])
socket.socket(socket.AF_UNIX).bind("socket")
while True:
    os.link("socket", "next"), os.rename("next", "chart.svg")
    os.symlink("victim", "next"), os.rename("next", "chart.svg")
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as neighbour:
        try:
            until(chart.is_socket, "the first socket")
            for _ in range(4000):
                with suppress(OSError):
                    output_file.write(chart, "theirs")
        finally:
            neighbour.kill()
    assert victim.read_text() == "mine"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", tmp_path / "read"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        output_file.write(pipe, "x")
    with read.open("wb") as file, subprocess.Popen(["cat", str(pipe)], stdout=file) as reader:
        text = "x" * 300_000  # more than a pipe holds

        def is_written() -> bool:
            with suppress(OSError):  # until the reader has opened it
                output_file.write(pipe, text)
                return True
            return False

        until(is_written, "the reader")
        assert reader.wait(30) == 0
    assert read.read_text() == text


def test_an_unfinished_file_has_a_name_that_nobody_can_guess(tmp_path: Path) -> None:
    """`lists entries -o FILE` wrote to `.FILE.PID`, where a link could be waiting."""
    names = {output_file.beside(tmp_path / "out.txt", 0o644) for _ in range(3)}
    assert len(names) == 3 and all(name.name.startswith(".out.txt.") for name in names)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        output_file.emptied(link)
    assert not (tmp_path / "victim").exists()


def test_the_identity_belongs_to_the_command_and_comes_back(place: Path) -> None:
    state = state_of_nobody(place)
    groups = os.getgroups()
    with root_as_owner.acting_for(state):
        assert root_as_owner.current_user() == NOBODY
        with pytest.raises(PermissionError):
            (place / "new").touch()
        with root_as_owner.as_operator():
            assert root_as_owner.current_user() == 0
            (place / "new").touch()
        assert root_as_owner.current_user() == NOBODY
        (state / "ours").touch()
    assert (root_as_owner.current_user(), os.getgroups()) == (0, groups)
    assert (state / "ours").stat().st_uid == NOBODY and (place / "new").stat().st_uid == 0


def test_who_controls_a_link_on_the_way_decides(place: Path) -> None:
    """A link of another user that leads to a directory of root gives root's rights to nobody."""
    state = state_of_nobody(place)
    (place / "closed").mkdir()
    (state / "link").symlink_to(place / "closed")
    os.chown(state / "link", NOBODY, NOBODY, follow_symlinks=False)
    (place / "admin-link").symlink_to("state")
    assert root_as_owner.foreign_owner(state / "link") == NOBODY
    assert root_as_owner.foreign_owner(place / "admin-link") == NOBODY
    assert root_as_owner.foreign_owner(place / "closed" / ".." / "closed") is None
    assert root_as_owner.foreign_owner(place / "nothing" / "yet") is None


def test_root_was_locked_out_of_the_mail_of_its_own_daemon_below_another_users_directory(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon looks at the last directory only; the commands took the rights of the other user."""
    home, state = place / "home", place / "home" / "state"
    state.mkdir(mode=0o700, parents=True)
    os.chown(home, NOBODY, NOBODY)
    assert root_as_owner.foreign_owner(state) is None
    assert root_as_owner.foreign_parent(state) == home
    with root_as_owner.acting_for(state):
        assert directories.make_directory(state, "state_directory") == state
        (state / "mail").touch()
    assert f"state_directory: {home} belongs to another user, who could replace {state}" in caplog.text
    assert root_as_owner.foreign_owner(home / "new" / "state") == NOBODY
    assert root_as_owner.foreign_parent(home / "new") is None


def test_the_root_of_a_user_namespace_took_the_machines_root_for_another_user(place: Path) -> None:
    """There, /proc/self/uid_map has few users, and directories of all others seem to belong to user 65534."""
    need("unshare", root=True)
    (place / "closed" / "state").mkdir(parents=True)
    os.chown(place / "closed", 4321, 4321)
    program = (
        "import sys; from pathlib import Path; from bridge.runtime import root_as_owner as o; "
        "print([(o.foreign_owner(p), o.foreign_parent(p)) for p in map(Path, sys.argv[1:])])"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    paths = [place / "closed" / "state", place / "closed" / "new"]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[(None, None), (None, None)]\n"
