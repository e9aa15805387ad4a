"""Quarantined mail is replayed as it arrived, and nothing changes by it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bridge.quarantine.record import StoredRecord, read
from bridge.testing import answer, result, until
from tests.quarantine.quarantine_kit import desk
from tests.replay.replay_kit import DELIVER, KEPT, Replays, everything_in

MAILS = [b"Subject: mail %d\r\n\r\nhello %d\r\n" % (number, number) for number in range(3)]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Replays]:
    with desk(tmp_path) as made:
        for mail in MAILS:
            made.send(mail, b"b@example.org", b"c@example.org")
        yield Replays(made)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replays]:
    """The same, for tests in which nothing is sent."""
    with desk(tmp_path_factory.mktemp("untouched")) as made:
        for mail in MAILS:
            made.send(mail, b"b@example.org", b"c@example.org")
        yield Replays(made)


def forget(at: Replays) -> None:
    at.desk.bridge.scanner.submissions.clear()


def test_the_scanner_gets_each_mail_exactly_as_it_did_when_it_arrived(at: Replays) -> None:
    """The same content and the same parameters; nothing is delivered, and no file of the quarantine changes."""
    scanner = at.desk.bridge.scanner
    first = {mail.email: mail.parameters for mail in scanner.submissions}
    before = everything_in(at.desk.directory)
    forget(at)
    done = at.run()
    assert {mail.email: mail.parameters for mail in scanner.submissions} == first and set(first) == set(MAILS)
    assert done.returncode == 0 and "3 mails replayed: 3 unchanged, 0 changed" in done.stdout
    assert everything_in(at.desk.directory) == before
    assert at.desk.bridge.next_hop.mails == []


def test_a_client_that_was_named_is_named_again(at: Replays) -> None:
    """The scanner is told a client that XFORWARD named, and not our own mail server's address."""
    forget(at)
    with at.desk.bridge.client() as client:
        client.open()
        client.say(b"XFORWARD ADDR=192.0.2.7 HELO=mx.client.example")
        client.mail(b"Subject: named\r\n\r\nx\r\n")
    first = at.desk.bridge.scanner.submissions[0].parameters
    forget(at)
    assert at.run("--subject", "named").returncode == 0
    again = at.desk.bridge.scanner.submissions[0].parameters
    assert again == first and again["borderMtaData"]["remoteAddress"] == "192.0.2.7"
    assert again["borderMtaData"]["senderHelo"] == "mx.client.example"


def test_a_record_of_an_older_version_names_its_client(at: Replays) -> None:
    """Records did not say whether the client was named; then it is named."""
    stored = at.desk.directory / f"{at.desk.ids[0]}.json"
    data = json.loads(stored.read_bytes())
    assert data.pop("client_named") is False
    assert read(StoredRecord("x", json.dumps(data).encode(), b"", 0.0)).is_client_named


def test_what_changed_is_shown_line_by_line(at: Replays) -> None:
    """A mail whose decision changes has a line, exit code 1 says so, and the matrix counts it."""
    scanner = at.desk.bridge.scanner
    scanner.reply_to = {b"hello 1": DELIVER}
    done = at.run()
    assert done.returncode == 1
    table, matrix, end = done.stdout.split("\n\n")
    header, line = table.split("\n")
    assert header.split("\t") == ["MAIL", "STATUS", "DECISION", "VERDICT", "TAGS", "FROM", "SUBJECT"]
    assert line.split("\t")[1:] == [
        *("changed", "quarantine -> deliver", "test -> clean", "-malware:eicar -spam"),
        *("a@client.example", "mail 1"),
    ]
    assert [row.split() for row in matrix.split("\n")] == [
        ["before", "\\", "now", "deliver", "quarantine"],
        ["quarantine", "1", "2"],
    ]
    compared = "compared with the decisions made when the mail arrived"
    assert end.endswith(f"{compared}\n3 mails replayed: 2 unchanged, 1 changed\n")
    assert len(at.run("--all").stdout.split("\n\n")[0].split("\n")) == 4


@pytest.mark.parametrize(
    ("level", "code"), [("decision", 0), ("verdict", 0), ("tags", 1)], ids=["decision", "verdict", "tags"]
)
def test_what_counts_as_a_change_can_be_chosen(at: Replays, level: str, code: int) -> None:
    """Another vendor's tags differ always; its decisions may not."""
    at.desk.bridge.scanner.reply = answer(200, result("quarantine", tags=["other"]))
    assert at.run("--compare", level).returncode == code


def test_the_order_of_tags_means_nothing(at: Replays) -> None:
    """A scanner may name the same tags in another order."""
    at.desk.bridge.scanner.reply = answer(200, result("quarantine", tags=["spam", "malware:eicar"]))
    assert at.run().returncode == 0


def test_json_and_csv_have_all_mails(at: Replays) -> None:
    """Programs get what did not change, too."""
    at.desk.bridge.scanner.reply_to = {b"hello 1": DELIVER}
    code, data = at.json()
    totals = {"selected": 3, "replayed": 3, "same": 2, "changed": 1, "new": 0, "failed": 0, "missing": 0}
    assert code == 1 and data["totals"] == totals
    assert data["matrix"] == {"quarantine": {"quarantine": 2, "deliver": 1}}
    assert [mail["subject"] for mail in data["mails"]] == ["mail 2", "mail 1", "mail 0"]
    changed = data["mails"][1]
    assert changed["before"] == KEPT and changed["now"]["decision"] == "deliver"
    assert (changed["sender"], changed["recipients"]) == ("a@client.example", ["b@example.org", "c@example.org"])
    assert changed["envelope"] == "record" and changed["status"] == "changed"
    rows = list(csv.DictReader(io.StringIO(at.run("--csv").stdout)))
    assert [row["status"] for row in rows] == ["same", "changed", "same"]
    assert rows[1]["decision_before"] == "quarantine" and rows[1]["decision_now"] == "deliver"


def test_filters_select_as_in_the_list(at: Replays) -> None:
    """`replay` takes the filters of `quarantine list`, ids and a limit."""
    ids = {mail["subject"]: mail["id"] for mail in at.desk.listed()}
    assert [mail["mail"] for mail in at.json("--subject", "*1")[1]["mails"]] == [ids["mail 1"]]
    assert [mail["mail"] for mail in at.json("--limit", "1")[1]["mails"]] == [ids["mail 2"]]
    assert [mail["mail"] for mail in at.json("--id", ids["mail 0"])[1]["mails"]] == [ids["mail 0"]]
    assert len(at.json("--tag", "malware:*", "--since", "1h", "--recipient", "c@*")[1]["mails"]) == 3


@pytest.mark.parametrize("args", [("--sender", "nobody"), ("--id", "0000")], ids=" ".join)
def test_no_mail_is_no_success(at: Replays, args: tuple[str, ...]) -> None:
    """A script must notice that nothing was compared."""
    done = at.run(*args)
    assert done.returncode == 3 and done.stdout == "" and "mail" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--from", "a@example.org"),
        ("--scanner", "http://127.0.0.1:1", "--service", "x.yml"),
        ("--scanner", "http://scan.example"),
        ("--scanner", "ftp://127.0.0.1"),
        ("--scanner", "http://127.0.0.1:1"),  # without its token
        ("--baseline", "nowhere.yml"),
        ("--baseline-token-file", "x"),
        ("--csv", "--json"),
        ("--concurrency", "0"),
        ("--concurrency", "65"),
        ("--timeout", "soon"),
        ("--id", "A", "--sender", "b"),
        ("--save", "/nowhere/x.json"),
        ("--plot", "/nowhere/x.svg"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    untouched: Replays, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and no mail leaves; above all, our token is not sent to another scanner."""
    forget(untouched)
    monkeypatch.chdir(untouched.desk.config.parent)
    Path("x.yml").touch()
    done = untouched.run(*args)
    assert done.returncode == 2, done.stderr
    assert untouched.desk.bridge.scanner.submissions == []


def test_a_saved_result_is_what_later_ones_are_compared_with(at: Replays, tmp_path: Path) -> None:
    """`--save` now, `--expect` after a change."""
    saved = tmp_path / "saved.json"
    at.desk.bridge.scanner.reply = DELIVER
    assert at.run("--save", saved).returncode == 1  # compared with the decisions made when the mail arrived
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert at.run("--expect", saved).returncode == 0
    at.desk.bridge.scanner.reply_to = {b"hello 2": answer(200, result("bounce"))}
    code, data = at.json("--expect", saved)
    assert code == 1 and data["matrix"] == {"deliver": {"deliver": 2, "bounce": 1}}
    assert data["compared_with"] == str(saved)
    code, data = at.json("--expect", saved, "--subject", "mail 0")
    assert code == 0 and data["totals"]["missing"] == 2


def test_an_expected_mail_is_found_by_its_content(at: Replays, tmp_path: Path) -> None:
    """The same mail in another place has another name."""
    saved, exported = tmp_path / "saved.json", tmp_path / "exported"
    exported.mkdir()
    at.run("--save", saved)
    assert at.desk.run("export", "--all", str(exported)).returncode == 0
    code, data = at.json(exported, "--expect", saved)
    assert code == 0 and data["totals"]["same"] == 3 and data["totals"]["missing"] == 0


def test_a_name_alone_does_not_make_it_the_same_mail(at: Replays, tmp_path: Path) -> None:
    """Files were renamed: the content decides which decision is expected."""
    one, two, saved = tmp_path / "1.eml", tmp_path / "2.eml", tmp_path / "saved.json"
    one.write_bytes(b"Subject: one\r\n\r\nhello 1\r\n")
    two.write_bytes(b"Subject: two\r\n\r\nhello 2\r\n")
    at.desk.bridge.scanner.reply_to = {b"hello 1": DELIVER}
    at.run(one, two, "--save", saved)
    one.rename(tmp_path / "3.eml")
    two.rename(one)
    assert at.run(one, tmp_path / "3.eml", "--expect", saved).returncode == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"mails": 1}', '{"mails": [{"mail": "x"}]}', "[" * 100_000])
def test_a_file_that_is_no_result_is_65(untouched: Replays, tmp_path: Path, text: str) -> None:
    """Nothing is sent for a comparison that cannot be made."""
    forget(untouched)
    (tmp_path / "bad.json").write_text(text)
    done = untouched.run("--expect", tmp_path / "bad.json")
    assert done.returncode == 65 and "was not written by" in done.stderr
    assert untouched.desk.bridge.scanner.submissions == []


def test_a_replay_that_was_stopped_replaced_the_expected_result(at: Replays, tmp_path: Path) -> None:
    """With a refused token, an empty result was saved over a good one, and then every comparison succeeded."""
    saved = tmp_path / "saved.json"
    at.run("--save", saved)
    before = saved.read_bytes()
    at.desk.bridge.scanner.reply = answer(401)
    stopped = at.run("--save", saved)
    assert stopped.returncode == 77 and f"{saved}: not written, because the replay is incomplete" in stopped.stderr
    assert saved.read_bytes() == before


@pytest.mark.parametrize("change", [{"mails": []}, {"interrupted": True}, {"stopped": "401"}], ids=str)
def test_an_incomplete_result_is_expected_of_no_mail(untouched: Replays, tmp_path: Path, change: Any) -> None:
    """Earlier versions saved such results: mail that is not in them would count as unchanged."""
    saved = tmp_path / "saved.json"
    untouched.run("--save", saved)
    saved.write_text(json.dumps(json.loads(saved.read_bytes()) | change))
    done = untouched.run("--expect", saved)
    assert done.returncode == 65 and "ended early: write it again with --save" in done.stderr


def test_mail_without_an_earlier_decision_is_not_a_change(tmp_path: Path) -> None:
    """A mail that was quarantined because the scanner could not be reached: there is nothing to compare with."""
    with desk(tmp_path, {"policy": {"unavailable": "quarantine"}}) as made:
        made.bridge.scanner.reply = answer(500)
        made.send()
        made.bridge.scanner.reply = DELIVER
        code, data = Replays(made).json()
    assert code == 0 and data["totals"]["new"] == 1
    assert data["mails"][0]["before"]["decision"] is None and data["mails"][0]["before"]["problem"]
    assert data["matrix"] == {"no decision": {"deliver": 1}}


def test_the_matrix_is_drawn(at: Replays, tmp_path: Path) -> None:
    """The picture is well-formed, has every number, and a service's words cannot add anything to it."""
    at.desk.bridge.scanner.reply_to = {b"hello 1": DELIVER}
    picture = tmp_path / "matrix.svg"
    assert at.run("--plot", picture).returncode == 1
    root = ElementTree.parse(picture).getroot()
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"deliver", "quarantine", "1", "2", "33% of row", "67% of row"} <= set(words)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "title", "rect", "text"}


@pytest.mark.parametrize(
    "columns", [20, pytest.param(40, marks=pytest.mark.long), 80, pytest.param(200, marks=pytest.mark.long)]
)
def test_one_line_per_mail_at_any_width(at: Replays, columns: int) -> None:
    """On a terminal, no line of the table is wider than it; a bar shows the progress."""
    at.desk.bridge.scanner.reply = DELIVER
    code, output = at.on_terminal(columns=columns)
    assert code == 1
    table = output[output.rindex("MAIL") :].split("\n\n")[0].split("\n")
    assert len(table) == 4 and all(len(line) <= columns for line in table)
    if columns >= 80:
        assert "replay" in output and "3 of 3" in output


def test_an_interrupted_replay_shows_what_is_done(at: Replays) -> None:
    """Ctrl-C: exit code 130, and the results so far."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    at.desk.bridge.scanner.reply_to = {b"hello 0": hang}
    forget(at)
    with subprocess.Popen(
        at.command("--json", "--concurrency", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        until(lambda: len(at.desk.bridge.scanner.submissions) == 3, "the last mail")
        running.send_signal(signal.SIGINT)
        output, problems = running.communicate(timeout=30)
    data = json.loads(output)
    assert running.returncode == 130 and "Traceback" not in problems
    assert data["interrupted"] and data["totals"]["replayed"] == 2 and data["totals"]["selected"] == 3


def test_a_mail_that_is_deleted_meanwhile_is_one_failure(at: Replays) -> None:
    """The others are replayed; exit code 75, because nothing changed."""
    (at.desk.directory / f"{at.desk.ids[0]}.eml").unlink()
    code, data = at.json()
    assert code == 75 and data["totals"]["failed"] == 1 and data["totals"]["same"] == 2


def test_a_damaged_record_is_one_failure(at: Replays) -> None:
    """Its envelope is unknown, so it cannot be replayed."""
    damaged = at.desk
    (damaged.directory / f"{damaged.ids[0]}.json").write_text("{")
    damaged.index.unlink()
    done = at.run()
    assert done.returncode == 75 and "its envelope is unknown" in done.stderr
