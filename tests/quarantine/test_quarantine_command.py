"""`scanbridge quarantine`: its output for people and scripts, safe from hostile content."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.testing import answer, result
from tests.quarantine.quarantine_kit import CONTENT, Desk, desk

TENANT = "123e4567-e89b-12d3-a456-426614174000"
HOSTILE = "Subject: \x1b[31mred [bold]\u202e\r\nX-Bell: \x07\r\n\r\nx\r\n".encode()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Three mails: an ordinary one, a hostile one, one that could not be scanned."""
    config = {
        "tenants": [{"uid": TENANT, "recipient_domains": ["tenant.example"]}],
        "policy": {"unavailable": "quarantine"},
    }
    with desk(tmp_path_factory.mktemp("quarantine"), config) as made:
        made.send(CONTENT, b"b@tenant.example", sender=b"")
        made.send(HOSTILE, b"b@example.org", b"c@example.org")
        made.bridge.scanner.reply = answer(500)
        made.send(b"Subject: not scanned\r\n\r\nx\r\n")
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Desk]:
    """A daemon for one test."""
    with desk(tmp_path) as made:
        yield made


def test_a_person_reads_a_table(here: Desk) -> None:
    """One line per mail, newest first, with everything that operators copy shown in full."""
    done = here.run("list")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split("\t") == ["ID", "TIME", "FROM", "TO", "SUBJECT", "WHY", "STATE"]
    assert [line.split("\t")[0] for line in lines[1:]] == here.ids[::-1]
    assert lines[2].split("\t")[2:4] == ["a@client.example", "b@example.org and 1 more"]
    assert lines[2].split("\t")[-2:] == ["malware:eicar,spam", "kept"]
    assert "unreachable" in lines[1] and "<>" in lines[3]


def test_hostile_content_cannot_control_the_terminal(here: Desk) -> None:
    """Escape sequences, bells, bidirectional overrides, and the markup of our table."""
    shown = here.call("list").stdout.replace("\t", "  ") + here.call("show", here.ids[1]).stdout
    assert "?[31mred [bold]?" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)


def test_a_script_gets_json(here: Desk) -> None:
    (line,) = here.listed("--recipient", "tenant", "--tenant", TENANT, "--since", "1d", "--until", "2999-01-01")
    times = line.pop("time")
    assert times.endswith("+00:00")
    assert line.pop("session")
    assert line == {
        "id": here.ids[0],
        "state": "kept",
        "sender": "",
        "recipients": ["b@tenant.example"],
        "subject": "x",
        "tenant": TENANT,
        "listener": "test",
        "remote_address": "127.0.0.1",
        "helo": "client.example",
        "size": len(CONTENT),
        "decision": "quarantine",
        "facts": {
            "reason": "quarantine",
            "rule": "policy.quarantine",
            "decision": "quarantine",
            "verdict": "test",
            "tags": ["malware:eicar", "spam"],
            "ggrid": "11111111-2222-4333-8444-555555555555",
        },
        "releases": [],
        "damaged": False,
    }


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--sender", ""], [0]),
        (["--tag", "malware:*"], [1, 0]),
        (["--decision", "unreachable"], [2]),
        (["--listener", "test", "--subject", "NOT"], [2]),
        (["--state", "released"], []),
        (["--until", "1h"], []),
        (["--limit", "0"], [2, 1, 0]),
    ],
)
def test_the_list_is_narrowed(here: Desk, options: list[str], numbers: list[int]) -> None:
    assert [mail["id"] for mail in here.listed(*options)] == [here.ids[number] for number in numbers]


def test_a_truncated_list_says_so(here: Desk) -> None:
    done = here.call("list", "--json", "--limit", "2")
    assert len(done.stdout.splitlines()) == 2 and "--limit 0 shows all" in done.stderr
    assert "no matching mail" in here.call("list", "--recipient", "nobody@nowhere").stderr


@pytest.mark.parametrize(
    "args",
    [["list", "--since", "yesteday"], ["purge", "--older-than", "30"], ["release", "A1", "--to", "a b@x"], ["show"]],
)
def test_an_invalid_option_is_a_usage_error(here: Desk, args: list[str]) -> None:
    assert here.call(*args).exit_code == 2


@pytest.mark.parametrize("wrong", ["NOSUCHMAIL", "../bridge", "", "a/b", "\x1b[2J"])
@pytest.mark.parametrize("command", ["show", "export", "delete", "release"])
def test_an_unknown_id_has_its_own_exit_code(here: Desk, command: str, wrong: str) -> None:
    done = here.call(command, "--", wrong, *(["-"] if command == "export" else []))
    assert done.exit_code == 3 and ("no such mail" if wrong or command == "show" else "an id is empty") in done.stderr
    assert "\x1b" not in done.stderr


def test_one_mail_is_shown(here: Desk) -> None:
    """Its record, its header section, or the whole mail."""
    mail_id = here.ids[0]
    shown = here.call("show", mail_id).stdout
    assert f"id:          {mail_id}\n" in shown and "to:          b@tenant.example\n" in shown
    assert "tags:        malware:eicar, spam\n" in shown and f"tenant:      {TENANT}\n" in shown
    assert "\nX-Scan-Decision: quarantine\n" in shown and shown.endswith("\nSubject: x\n")
    about = json.loads(here.call("show", "--json", mail_id).stdout)
    assert about["recipients"] == ["b@tenant.example"] and about["header"].endswith("Subject: x")
    raw = here.call("show", "--raw", mail_id)
    assert raw.stdout_bytes == (here.directory / f"{mail_id}.eml").read_bytes()


def test_a_mail_is_exported(here: Desk, tmp_path: Path) -> None:
    """Into a directory, never overwriting a file, or to standard output."""
    mail_id = here.ids[0]
    assert here.call("export", mail_id, str(tmp_path)).exit_code == 0
    for name in (f"{mail_id}.eml", f"{mail_id}.json"):
        assert (tmp_path / name).read_bytes() == (here.directory / name).read_bytes()
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert here.call("export", mail_id, str(tmp_path)).exit_code == 1
    assert here.call("export", mail_id, str(tmp_path / "nowhere")).exit_code == 1
    assert here.call("export", mail_id, "-").stdout_bytes.endswith(CONTENT)


def test_an_export_left_a_mail_behind_if_its_metadata_was_there_already(here: Desk, tmp_path: Path) -> None:
    """The second attempt then failed because of the first one."""
    mail_id = here.ids[0]
    (tmp_path / f"{mail_id}.json").write_text("mine")
    failed = here.call("export", mail_id, str(tmp_path))
    assert failed.exit_code == 1 and f"{mail_id}.json already exists" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == [f"{mail_id}.json"]
    assert (tmp_path / f"{mail_id}.json").read_text() == "mine"


def test_mail_is_deleted(own: Desk) -> None:
    deleted, kept_id = own.send(), own.send()
    done = own.call("delete", "--yes", deleted)
    assert (done.exit_code, done.stdout) == (0, f"{deleted}: deleted\n")
    assert own.call("delete", deleted).exit_code == 3
    assert own.ids == [kept_id] and [kept["id"] for kept in own.listed()] == [kept_id]
    (line,) = map(json.loads, (own.directory / "actions.log").read_text().splitlines())
    assert (line["action"], line["id"]) == ("removed", deleted) and line["by"]


def test_old_mail_is_purged(own: Desk) -> None:
    """By the given age, or by the configured retention."""
    old, new = own.send(), own.send()
    past = time.time() - 10 * 86400
    os.utime(own.directory / f"{old}.json", (past, past))
    assert own.call("purge").stdout == "0 deleted\n"
    assert own.call("purge", "--older-than", "9d", "--yes").stdout == "1 deleted\n"
    assert own.ids == [new]
    assert json.loads((own.directory / "actions.log").read_text())["action"] == "purged"


def test_a_mail_whose_json_is_damaged_can_be_released_to_a_named_address(own: Desk) -> None:
    mail_id = own.send()
    (own.directory / f"{mail_id}.json").write_bytes(b"{")
    own.index.unlink()
    assert "damaged" in own.call("list").stdout and "damaged" in own.call("show", mail_id).stdout
    assert own.call("release", mail_id).exit_code == 1
    assert own.call("release", mail_id, "--to", "b@example.org").exit_code == 0
    assert own.bridge.next_hop.mails[0].content.endswith(CONTENT)


def test_a_release_without_a_next_hop_or_with_a_bad_file_is_a_configuration_error(own: Desk) -> None:
    mail_id = own.send()
    data = yaml_file.load(own.config, Config).model_dump(mode="json", include={"scanner"})
    listener = {"name": "m", "protocol": "milter", "address": "127.0.0.1:1"}
    own.config.write_text(
        yaml_file.dump({**data, "listeners": [listener], "state_directory": str(own.directory.parent)})
    )
    done = own.call("release", mail_id)
    assert done.exit_code == 78 and "relay.next_hop" in done.stderr
    own.config.write_text("nonsense: 1\n")
    assert own.call("list").exit_code == 78


def test_over_the_size_limit_the_client_reads_452_and_nothing_is_removed(tmp_path: Path) -> None:
    """As soon as mail is removed, new mail is accepted."""
    with desk(tmp_path, {"quarantine": {"max_size": "20KiB"}}) as here:
        large = b"Subject: x\r\n\r\n" + b"x" * 900 + b"\r\n" + b"x" * 8000 + b"\r\n"
        first, second = here.send(large), here.send(large)
        with here.bridge.client() as client:
            client.open()
            assert client.mail(large).startswith(b"452 4.3.1")
        assert here.ids == sorted([first, second])
        assert here.call("delete", "--yes", first).exit_code == 0
        here.bridge.daemon.components.quarantine._quota.recount()  # a second later
        here.send(large)


def test_a_copy_of_refused_mail_is_found_by_its_decision(tmp_path: Path) -> None:
    """keep_copy: the sender reads 550, and operators can still read and release the mail."""
    policy = {"bounce": {"action": "reject", "keep_copy": True}}
    with desk(tmp_path, {"policy": policy}) as here:
        here.bridge.scanner.reply = answer(200, result("bounce"))
        with here.bridge.client() as client:
            client.open()
            assert client.mail().startswith(b"550")
        (kept,) = here.listed("--decision", "bounce")
        assert here.call("release", kept["id"]).exit_code == 0
        assert len(here.bridge.next_hop.mails) == 1
