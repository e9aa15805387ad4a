"""The included service in another configuration: private, with the lists of its database, and gone afterwards."""

from __future__ import annotations

import hashlib
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.cli.replay import profiles
from bridge.cli.replay.judgement import Judgement, Replay, Row
from bridge.testing import until
from tests.postgresql import fresh_database
from tests.processes import command_line, descendants
from tests.quarantine.quarantine_kit import desk
from tests.replay.replay_kit import Replays
from tests.service.service_kit import CONFIG, GTUBE, Lists, service
from tests.service.test_service_learning import CLIENT, report_scanned, tags_of
from tests.service.test_service_learning import mail as near_the_threshold

HEAD = b"From: a@client.example\r\nDate: Mon, 2 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@x>\r\n"
MAIL = HEAD + b"Subject: x\r\n\r\nhello\r\n"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replays]:
    (tmp_path / "bridge").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # of the processes that are started
    with desk(tmp_path / "bridge") as made:
        made.send(MAIL)
        made.send(MAIL + GTUBE + b"\r\n")
        made.send(MAIL, sender=b"blocked@sender.example")
        made.bridge.scanner.submissions.clear()
        yield Replays(made)


def decisions(data: dict[str, object]) -> list[str]:
    return [mail["now"]["decision"] for mail in data["mails"]]  # type: ignore[index, attr-defined]


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in (directory / "tmp").iterdir() if path.name.startswith("scanbridge-service-")]


def test_the_service_decides_as_its_configuration_says(at: Replays, tmp_path: Path) -> None:
    """A real service, started for one command; the configured scanner is not asked."""
    file = tmp_path / "service.yml"
    file.write_text(CONFIG)
    code, data = at.json("--service", file)
    assert code == 1 and decisions(data) == ["deliver", "bounce", "deliver"]
    assert at.desk.bridge.scanner.submissions == [] and leftovers(tmp_path) == []
    assert not (tmp_path / "service.sqlite").exists()
    strict = tmp_path / "strict.yml"
    strict.write_text(CONFIG + "decisions: {otherwise: quarantine}\n")
    code, data = at.json("--service", strict, "--baseline", file)
    assert code == 1 and data["matrix"] == {"deliver": {"quarantine": 2}, "bounce": {"bounce": 1}}
    assert data["compared_with"] == str(file)


def test_the_lists_of_a_running_service_count_and_its_database_does_not_change(at: Replays, tmp_path: Path) -> None:
    """The trial reads them from the database of the service in use, and writes nothing there."""
    place = tmp_path / "service"
    place.mkdir()
    with service(place, CONFIG, with_key=True) as running:
        assert Lists(running).add("blocked-senders", "blocked@sender.example").status == 200
        (place / "trial.yml").write_text(CONFIG)
        before = _rows(place / "service.sqlite")
        code, data = at.json("--service", place / "trial.yml")
        assert code == 1 and decisions(data) == ["bounce", "bounce", "deliver"]
        assert _rows(place / "service.sqlite") == before
    digest = hashlib.sha256((place / "service.sqlite").read_bytes()).hexdigest()
    assert decisions(at.json("--service", place / "trial.yml")[1]) == ["bounce", "bounce", "deliver"]
    assert hashlib.sha256((place / "service.sqlite").read_bytes()).hexdigest() == digest


def test_lists_in_postgresql_count(at: Replays, tmp_path: Path, postgresql: str) -> None:
    """The trial has a copy of them; the server's tables stay as they are."""
    text = CONFIG.replace("sqlite:///service.sqlite", fresh_database(postgresql))
    with service(tmp_path, text, with_key=True) as running:
        assert Lists(running).add("blocked-senders", "blocked@sender.example").status == 200
    (tmp_path / "trial.yml").write_text(text)
    assert decisions(at.json("--service", tmp_path / "trial.yml")[1]) == ["bounce", "bounce", "deliver"]


def test_what_people_had_reported_did_not_count(at: Replays, tmp_path: Path) -> None:
    """The same configuration and the same mail: without the learned weights, the trial showed a change."""
    with service(tmp_path, CONFIG, with_key=True) as running:
        for person in ("ann", "bob", "eve"):
            assert report_scanned(running, near_the_threshold(), reporter=person).status == 200
        tagged = {"phishing:likely"}
        until(lambda: tags_of(running, near_the_threshold(2)) != tagged, "the votes to count")
        now = running.submit(near_the_threshold(3), remoteAddress=CLIENT).json
    (tmp_path / "mail.eml").write_bytes(near_the_threshold(3))
    (tmp_path / "trial.yml").write_text(CONFIG)
    given = (tmp_path / "mail.eml", "--from", "a@example.org", "--to", "b@example.net", "--remote-address", CLIENT)
    code, data = at.json(*given, "--service", tmp_path / "trial.yml")
    found = data["mails"][0]["now"]
    assert code == 0 and (found["decision"], found["tags"]) == (now["decision"], now["tags"])


@pytest.mark.parametrize(
    "core", ['hosts: ["http://127.0.0.1:1"]', 'nats: {servers: ["nats://127.0.0.1:1"]}'], ids=["hosts", "nats"]
)
def test_a_trial_of_a_clusters_configuration_asked_the_cluster(at: Replays, tmp_path: Path, core: str) -> None:
    """Core nodes and workers have the configuration in use, not the one to try; here, they cannot be reached at all."""
    (tmp_path / "trial.yml").write_text(CONFIG.replace("{core: {}}", f"{{core: {{{core}}}}}"))
    code, data = at.json("--service", tmp_path / "trial.yml")
    assert code == 1 and decisions(data) == ["deliver", "bounce", "deliver"]


def test_a_wrong_configuration_is_78(at: Replays, tmp_path: Path) -> None:
    """With the file and the line, as `scanbridge service` says it."""
    (tmp_path / "service.yml").write_text("gard: {}\n")
    done = at.run("--service", tmp_path / "service.yml")
    assert done.returncode == 78 and "service.yml:1" in done.stderr


def test_a_database_that_cannot_be_read_is_said(at: Replays, tmp_path: Path) -> None:
    """Without its lists, the service would decide differently: no result is better than a wrong one."""
    (tmp_path / "service.sqlite").write_bytes(b"not a database" * 100)
    (tmp_path / "service.yml").write_text(CONFIG)
    done = at.run("--service", tmp_path / "service.yml")
    assert done.returncode == 1 and "lists and reports cannot be read" in done.stderr and done.stdout == ""
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "sig",
    [
        pytest.param(signal.SIGKILL, id="KILL"),
        pytest.param(signal.SIGTERM, id="TERM", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, id="INT", marks=pytest.mark.long),
    ],
)
def test_the_service_ends_with_the_command_however_that_ends(at: Replays, tmp_path: Path, sig: int) -> None:
    """No process and no file is left."""
    slow = tmp_path / "slow.sock"
    file = tmp_path / "service.yml"
    file.write_text(CONFIG + f"analyzers: {{clamav: {{address: 'unix:{slow}', required: true, timeout: 60s}}}}\n")
    with socket.socket(socket.AF_UNIX) as silent:  # accepts and never answers, so that the scan goes on
        silent.bind(str(slow))
        silent.listen()
        with subprocess.Popen(at.command("--service", file), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            silent.settimeout(60)
            connection, _ = silent.accept()
            found = descendants(run.pid)
            assert any("private_service" in command_line(pid) for pid in found)
            run.send_signal(sig)
            run.communicate(timeout=60)
            connection.close()
    until(lambda: not [pid for pid in found if Path(f"/proc/{pid}").exists()], "the end of the service")
    until(lambda: leftovers(tmp_path) == [], "its files to be gone")


def _rows(database: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


PHISHING = """\
From: "PayPal" <service@shop.example>
To: ann@example.net
Subject: News of this week
Date: Mon, 16 Nov 2026 09:00:00 +0000
Message-ID: <1@shop.example>
Content-Type: text/html; charset=utf-8

<p>Dear customer, see what is new{more}</p>
<a href="https://shop.example/1">Log in</a>
"""


def test_profiles_are_compared_in_one_table(at: Replays, tmp_path: Path) -> None:
    """A strict profile stops mail that a cautious one delivers; nothing is stored, and other rules count as before."""
    (tmp_path / "service.yml").write_text(CONFIG)
    mails = tmp_path / "mails"
    mails.mkdir()
    for name, more in (("a", ""), ("b", ", please verify your account")):
        (mails / f"{name}.eml").write_text(PHISHING.format(more=more))
    (mails / "c.eml").write_bytes(MAIL)
    (mails / "d.eml").write_bytes(MAIL + GTUBE + b"\r\n")
    given = (mails, "--to", "b@example.org", "--service", tmp_path / "service.yml", "--profiles")
    code, data = at.json(*given)
    assert code == 0 and list(data["profiles"]) == ["cautious", "balanced", "strict"]
    stopped = [data["decisions"][name].get("quarantine", 0) for name in data["profiles"]]
    assert stopped == sorted(stopped) and stopped[0] < stopped[-1]
    assert all(data["decisions"][name]["bounce"] == 1 for name in data["profiles"])
    assert leftovers(tmp_path) == []


def test_the_table_of_profiles_names_the_mails_in_which_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each such mail, then one for each profile."""
    rows = [[Row(name, Judgement(decision), sender="a@b.example") for name, decision in mails] for mails in DECIDED]
    profiles.show({name: Replay("x", "y", rows=list(own)) for name, own in zip(profiles.PROFILES, rows, strict=True)})
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:4] == ["two.eml", "deliver", "quarantine", "quarantine"]
    assert [line.split() for line in shown[3:7]] == [
        ["profile", "deliver", "quarantine"],
        ["cautious", "2", "."],
        ["balanced", "1", "1"],
        ["strict", "1", "1"],
    ]


DECIDED = (
    (("one.eml", "deliver"), ("two.eml", "deliver")),
    (("one.eml", "deliver"), ("two.eml", "quarantine")),
    (("one.eml", "deliver"), ("two.eml", "quarantine")),
)


def test_profiles_belong_to_the_included_service(at: Replays) -> None:
    """Without a service to start, or with another comparison, the command says what is missing."""
    assert "--profiles requires --service" in at.run("--profiles").stderr
