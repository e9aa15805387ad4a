"""A renamed key: the old name works, and whoever runs the bridge is told about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bridge.cli.check.findings import collect
from bridge.config import admin_address, effective, model, origin, renamed
from bridge.daemon import config_file
from bridge.errors import ConfigError
from bridge.runtime.renamed_keys import Renamed
from bridge.service import advice, config_files

RENAMED = (
    Renamed("listeners.*.time_limit", "listeners.*.deadline", "99.1"),
    Renamed("admin_address", "admin.address", "99.1"),
    Renamed("store", "quarantine", "99.1"),
)
TEXT = """\
scanner: {urls: ["http://127.0.0.1:1"], token_file: token}
listeners:
  - {name: a, protocol: milter, address: "127.0.0.1:0"}
  - name: b
    protocol: milter
    address: 127.0.0.1:0
    time_limit: 21s
admin_address: 127.0.0.1:1234
store:
  directory: elsewhere
"""
WARNINGS = [
    "{path}:7: listeners.1.time_limit: this key is now called listeners.1.deadline; the old name works until "
    "version 99.1",
    "{path}:8: admin_address: this key is now called admin.address; the old name works until version 99.1",
    "{path}:9: store: this key is now called quarantine; the old name works until version 99.1",
]
SERVICE = (Renamed("adress", "listen", "99.1"), Renamed("guard.workers", "guard.mainWorkerCount", "99.1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("0" * 64)
    path = tmp_path / "bridge.yml"
    path.write_text(TEXT)
    return path


def expected(path: Path) -> list[str]:
    return [warning.format(path=path) for warning in WARNINGS]


def test_an_old_name_is_read_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = model.load(path, RENAMED)
    assert conf.listeners[1].deadline == 21.0
    assert str(conf.admin.address) == "127.0.0.1:1234" == str(admin_address.read(path, RENAMED))
    assert conf.quarantine.directory == "elsewhere"
    assert conf.warnings == expected(path)
    with caplog.at_level(logging.WARNING):
        config_file.log_warnings(conf)
    assert caplog.messages == expected(path)


async def test_check_shows_it(path: Path) -> None:
    found = await collect(model.load(path, RENAMED))
    assert [finding.warning for finding in found if finding.what == "configuration"] == expected(path)


def test_the_shown_configuration_names_the_line_of_the_old_name(path: Path) -> None:
    conf = model.load(path, RENAMED)
    found = dict(origin.origins(effective.effective(conf), conf, path, RENAMED))
    assert found["quarantine", "directory"] == "bridge.yml:10"
    assert found["listeners", 1, "deadline"] == "bridge.yml:7"


def test_without_the_rename_the_old_name_is_unknown(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bridge\.yml:9: store: unknown key"):
        model.load(path)


def test_mistakes_below_an_old_name_have_its_line(path: Path) -> None:
    path.write_text(TEXT.replace("directory: elsewhere", "directory: [1]").replace("21s", "soon"))
    with pytest.raises(ConfigError) as raised:
        model.load(path, RENAMED)
    places = [line.partition(": ")[0] for line in str(raised.value).splitlines()]
    assert places == [f"{path}:7", f"{path}:10"]


def test_both_names_together_are_refused(path: Path) -> None:
    """Nobody knows which of the two values was meant."""
    path.write_text(f"{TEXT}quarantine: {{}}\n")
    with pytest.raises(ConfigError) as raised:
        model.load(path, RENAMED)
    assert str(raised.value) == (
        f"{path}:9: store: this key is now called quarantine, which is also set; remove the old key"
    )


@pytest.mark.parametrize("text", ["listeners: 1\nadmin_address: x\nadmin: 1\n", "- 1\n", "", "a: *b\n"])
def test_a_file_of_another_shape_is_refused_as_before(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError):
        model.load(path, RENAMED)


@pytest.mark.parametrize("is_directory", [False, True])
def test_old_names_of_the_service_are_read(tmp_path: Path, is_directory: bool) -> None:
    """In one file, and in the files of the original service, whose keys have no prefix."""
    guard = "scanSources: {restApi: {}}\nworkers: 7\n"
    if is_directory:
        (tmp_path / "guard/core").mkdir(parents=True)
        (tmp_path / "guard/core/guard.yml").write_text(guard)
        (tmp_path / "service.yml").write_text("adress: 127.0.0.1:4321\n")
        where, second = tmp_path, f"{tmp_path}/guard/core/guard.yml:2: workers: this key is now called mainWorkerCount"
    else:
        where = tmp_path / "service.yml"
        where.write_text("adress: 127.0.0.1:4321\nguard:\n  scanSources: {restApi: {}}\n  workers: 7\n")
        second = f"{where}:4: guard.workers: this key is now called guard.mainWorkerCount"
    loaded = config_files.load(where, SERVICE)
    assert str(loaded.config.listen) == "127.0.0.1:4321"
    assert loaded.config.guard.mainWorkerCount == 7
    until = "; the old name works until version 99.1"
    first = f"{tmp_path}/service.yml:1: adress: this key is now called listen{until}"
    assert {first, f"{second}{until}"} <= set(advice.advice(loaded))


def test_no_old_name_outlives_its_version() -> None:
    expired = [entry.old for entry in (*renamed.RENAMED, *config_files.RENAMED) if entry.is_expired]
    assert not expired, "delete these renames, and say so in CHANGELOG.md"


def test_an_entry_expires_with_its_version() -> None:
    assert Renamed("a", "b", "0.0.9").is_expired and not Renamed("a", "b", "99.1").is_expired
