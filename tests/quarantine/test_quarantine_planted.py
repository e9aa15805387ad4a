"""The quarantine belongs to the service's user, root runs the commands: no planted file leads root astray."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.daemon.named_files import make_secret
from bridge.errors import ConfigError, StoreError
from bridge.quarantine.index import Index, IndexFailed
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.quarantine import Quarantine
from bridge.runtime import durable_files
from bridge.runtime.database import Database
from tests.quarantine.quarantine_kit import HEAD, Desk, desk, make_tx
from tests.requirements import need

NOBODY = 65534
SECRET = b"Subject: root's secret\r\n\r\nhunter2\r\n"


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def device(path: Path, secret: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


def second_name(path: Path, secret: Path) -> None:
    os.link(secret, path)


PLANTED = [link, fifo, device, second_name]
Plant = Callable[[Path, Path], None]


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On disk for a device: where files are in memory, the kernel usually refuses to open one (nodev)."""
    if "device" not in request.node.name:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="scanbridge-tests-", dir="/var/tmp") as name:
        assert not os.statvfs(name).f_flag & os.ST_NODEV, "no device can be opened in /var/tmp: it is mounted nodev"
        yield Path(name)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Desk]:
    need(root=True)
    (tmp_path / "desk").mkdir()
    with desk(tmp_path / "desk") as running:
        running.send()
        yield running


def give_to_nobody(here: Desk) -> None:
    for path in (here.directory.parent, *here.directory.parent.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


def run(here: Desk, *args: str, is_process: bool) -> tuple[int, bytes]:
    """A process of its own takes a second, so only some tests start one."""
    if is_process:
        process = here.run(*args)
        code, output = process.returncode, process.stdout + process.stderr
    else:
        call = here.call(*args)
        code, output = call.exit_code, call.stdout_bytes + call.stderr_bytes
    assert b"hunter2" not in output and b"Traceback" not in output
    return code, output


@pytest.mark.parametrize("suffix", [".eml", ".json", ".releases"])
@pytest.mark.parametrize("plant", PLANTED)
def test_root_exported_and_sent_any_file_and_waited_for_a_pipe(
    here: Desk, secret: Path, tmp_path: Path, plant: Plant, suffix: str
) -> None:
    """In place of each of a mail's three files. Every command ends, and the other mail is still listed."""
    good, (bad,) = here.send(), here.ids[:1]
    give_to_nobody(here)
    planted = here.directory / f"{bad}{suffix}"
    planted.unlink(missing_ok=True)
    plant(planted, secret)
    target = tmp_path / "out"
    target.mkdir()
    is_process = (plant, suffix) in ((link, ".eml"), (fifo, ".json"))
    assert run(here, "export", bad, str(target), is_process=is_process)[0] != 0
    assert run(here, "release", bad, is_process=is_process)[0] != 0
    run(here, "show", bad, is_process=False)
    assert good.encode() in run(here, "list", is_process=is_process)[1]
    assert not any(b"hunter2" in path.read_bytes() for path in target.iterdir())
    assert not any(b"hunter2" in mail.content for mail in here.bridge.next_hop.mails)
    assert secret.read_bytes() == SECRET and secret.stat().st_uid == 0


@pytest.mark.parametrize("plant", PLANTED)
async def test_a_mail_that_was_exchanged_under_its_lock_is_not_read(tmp_path: Path, secret: Path, plant: Plant) -> None:
    """The lock checked one file, and the release then read another."""
    need(root=True)
    quarantine, tx = Quarantine(tmp_path / "q"), make_tx()
    await quarantine.keep(tx, HEAD, {})
    os.chown(tmp_path / "q", NOBODY, NOBODY)
    with quarantine.lock(tx.id):
        mail = tmp_path / "q" / f"{tx.id}.eml"
        mail.unlink()
        plant(mail, secret)
        with pytest.raises(StoreError):
            list(quarantine.chunks(tx.id))


async def test_a_record_of_any_size_was_read_into_memory(tmp_path: Path) -> None:
    store, tx = LocalStore(tmp_path / "q"), make_tx()
    await Quarantine(tmp_path / "q").keep(tx, HEAD, {})
    os.truncate(tmp_path / "q" / f"{tx.id}.json", 1 << 40)
    with pytest.raises(StoreError, match="larger than"):
        store.read(tx.id)


@pytest.mark.parametrize("plant", PLANTED)
def test_root_gave_away_the_file_behind_the_name(tmp_path: Path, secret: Path, plant: Plant) -> None:
    """A file that root creates is given to the directory's owner; not one that was put in its place."""
    need(root=True)
    os.chown(tmp_path, NOBODY, NOBODY)
    plant(tmp_path / "made", secret)
    durable_files.give_to_owner(tmp_path / "made")
    assert (secret.stat().st_uid, secret.stat().st_gid) == (0, 0)
    (tmp_path / "ours").touch()
    durable_files.give_to_owner(tmp_path / "ours")
    assert (tmp_path / "ours").stat().st_uid == NOBODY


@pytest.mark.parametrize("plant", [link, fifo])
def test_root_does_not_open_what_stands_in_place_of_a_database_or_key(
    tmp_path: Path, secret: Path, plant: Plant
) -> None:
    need(root=True)
    path = tmp_path / "state.sqlite"
    plant(path, secret)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(IndexFailed):
        Index(Database.file(path)).known()
    with pytest.raises(ConfigError, match="not a regular file"):
        make_secret(path, "key")
    assert secret.read_bytes() == SECRET
