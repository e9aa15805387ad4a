"""`scanbridge history`, `explain` and `stats` on a filled history, as real commands."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.history.columns import MAILS, NATURAL
from bridge.history.entry import MailEntry
from bridge.history.query import pasted_key
from bridge.history.sqlite import SqliteHistory
from bridge.observe.redaction import Redaction
from bridge.testing import until, whole_lines
from tests.daemon.process_kit import INDIA, ROOT, environment, scanbridge
from tests.history.history_kit import add, mail

CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:2"}}]
relay: {{next_hop: "smtp://127.0.0.1:3"}}
admin: {{address: "127.0.0.1:4"}}
state_directory: {state}
"""
HOSTILE = "a\nb\x1b[31m\u202e\t=cmd()"


class Place:
    """A configuration and its history."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.now = time.time()
        self.file = directory / "bridge.yml"
        self.state = directory / "state"
        self.state.mkdir()
        (directory / "token").write_text("0123456789abcdef")
        self.file.write_text(CONFIG.format(state=self.state) + more)
        self.store = SqliteHistory(self.state / "history")

    def close(self) -> None:
        self.store.close()

    def add(self, *numbers: int, **values: Any) -> None:
        """One mail for each number, so many seconds ago."""
        add(self.store, *(mail(number, **{"at": self.now - number, **values}) for number in numbers))

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return scanbridge(*arguments, "-c", self.file, env=environment(**variables))

    def says(self, *arguments: str, **variables: str) -> str:
        done = self.run(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with closing(Place(tmp_path)) as made:
        yield made


def ids(shown: str) -> list[str]:
    return [json.loads(line)["id"] for line in shown.splitlines()]


def ids_in(file: Path) -> list[str]:
    return ids("\n".join(whole_lines(file)))


# history


def test_pages_lead_from_one_to_the_next_by_their_own_words(place: Place) -> None:
    """The printed command is complete: filters, form and configuration are in it."""
    place.add(*range(1, 8))
    place.add(20, sender="x@elsewhere.example")
    done = place.run("history", "--sender", "sender.example", "--since", "1d", "--json", "--limit", "3")
    found = ids(done.stdout)
    while "next page: " in done.stderr:
        command = shlex.split(done.stderr.partition("next page: ")[2])
        assert command[0] == "scanbridge"
        done = scanbridge(*command[1:])
        found += ids(done.stdout)
    assert found == [f"ID{number:04d}" for number in range(1, 8)]


def test_the_next_page_missed_an_hour_when_summer_time_ended(place: Place) -> None:
    """The clock shows that hour twice, and the time in the printed command was taken for the first one."""
    end = datetime.fromisoformat("2026-10-25T02:30:00+01:00").timestamp()
    place.add(*range(4), at=end - 60)
    options = ("--until", "2026-10-25 02:30+01:00", "--limit", "2", "--json")
    done = place.run("history", *options, TZ="Europe/Berlin")
    command = shlex.split(done.stderr.partition("next page: ")[2])
    following = scanbridge(*command[1:], env=environment(TZ="Europe/Berlin"))
    assert sorted(ids(done.stdout) + ids(following.stdout)) == ["ID0000", "ID0001", "ID0002", "ID0003"]


@pytest.mark.parametrize("form", ["--json", "--csv", "--wide"])
def test_without_a_limit_everything_is_shown_once(place: Place, form: str) -> None:
    """It is read in parts."""
    place.store.append([mail(number, at=place.now - number) for number in range(2500)])
    lines = place.says("history", "--limit", "0", form).splitlines()
    assert len(lines) == 2500 + (form != "--json")
    assert len(set(re.findall(r"ID\d{4}", "\n".join(lines)))) == 2500


def test_a_reader_that_goes_away_is_no_error(place: Place) -> None:
    """`scanbridge history --limit 0 | head`"""
    place.store.append([mail(number, at=place.now - number) for number in range(2500)])
    command = f"{sys.executable} -m bridge history --limit 0 -c {place.file} | head -1"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.stdout.startswith("ID\t") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "key", ["@", "<>", "*", "%", "a@", "<@>", "x" * 5000, "\u202e@x", b"\xff@x.example", "-", "'", ":"]
)
def test_any_text_can_be_asked_for(place: Place, key: str | bytes) -> None:
    """It is not found, and nothing breaks."""
    place.add(1)
    for command in ("explain", "history"):
        done = scanbridge(command, "-c", place.file, "--", key)
        assert done.returncode in (0, 2, 3) and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--recipient", "special@example.org"], ["ID0003"]),
        (["--recipient", "<special@EXAMPLE.org>"], ["ID0003"]),
        (["--sender", "<>"], ["ID0004"]),
        (["--sender", "*@other.example"], ["ID0005"]),
        (["--subject", "quart* INVOICE"], ["ID0006"]),
        (["--tag", "malware:*"], ["ID0007"]),
        (["--client", "198.51.100.0/24"], ["ID0008"]),
        (["--client", "::ffff:198.51.100.9"], ["ID0008"]),  # as programs with IPv6 sockets log it
        (["--client", "::ffff:198.51.100.0/120"], ["ID0008"]),
        (["id0008"], ["ID0008"]),  # as `explain` finds it
        (["--action", "reject"], ["ID0009"]),
        (["--rule", "lists.x"], ["ID0009"]),
        (["--stage", "rcpt"], ["ID0009"]),
        (["--until", "100s"], ["ID0200"]),
        (["--tenant", "0b8e4567-e89b-12d3-a456-426614174000"], ["ID0010"]),
        (["--listener", "other"], ["ID0010"]),
        (["--decision", "drop"], ["ID0010"]),
        (["queue-7"], ["ID0010"]),
        (["ident=queue-7,"], ["ID0010"]),
    ],
)
def test_each_filter_finds_its_mail(place: Place, options: list[str], expected: list[str]) -> None:
    place.add(1, 2)
    place.add(3, recipients="a@example.org\nspecial@example.org")
    place.add(4, sender="")
    place.add(5, sender="a@other.example")
    place.add(6, subject="Your invoice for the quarter")
    place.add(7, tags="header:x,malware:eicar")
    place.add(8, client="198.51.100.9")
    place.add(9, action="reject", rule="lists.x", stage="rcpt")
    place.add(10, tenant="0b8e4567-e89b-12d3-a456-426614174000", listener="other", decision="drop", queue_id="queue-7")
    place.add(200)
    assert ids(place.says("history", *options, "--json")) == expected


def test_a_list_has_one_line_for_each_mail_whatever_it_contains(place: Place) -> None:
    place.add(1, 2, subject=HOSTILE, sender='"a b\x1b"@x.example', reply="550 a\nb")
    for form in ([], ["--wide"]):
        lines = place.says("history", *form).splitlines()
        assert len(lines) == 3 and not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", "".join(lines))
    header, *rows = csv.reader(io.StringIO(place.says("history", "--csv")))
    assert header[:3] == ["id", "time", "from"] and len(rows) == 2
    assert json.loads(place.says("history", "--json").splitlines()[0])["subject"] == HOSTILE


@pytest.mark.parametrize("width", [1, 10, 19, 40, 80, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    from rich.cells import cell_len

    kind, row = mail(1, subject="\u4e2d\u6587" * 50, recipients="\n".join(["long" * 20 + "@example.org"] * 3))
    entries = [MailEntry(row, kind), MailEntry(row._replace(mails=1234), kind)]
    for lines in (MAILS.lines(entries, MAILS.brief, width), MAILS.lines_of_widths(entries, NATURAL, width)):
        assert [cell_len(line) <= width for line in lines] == [True] * 3


def test_new_mails_are_shown_as_they_come(place: Place) -> None:
    """Also one that was finished before another that is already shown: processes write in batches."""
    place.add(5, 6, 7)
    command = [sys.executable, "-m", "bridge", "history", "--follow", "--limit", "2", "--json", "-c", str(place.file)]
    seen = place.file.with_name("seen")
    with seen.open("wb") as file, subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=file) as process:
        try:
            until(lambda: ids_in(seen) == ["ID0006", "ID0005"], "the last two mails")
            place.add(100, at=time.time())
            until(lambda: "ID0100" in ids_in(seen), "a new mail")
            place.add(101, at=time.time() - 3)
            until(lambda: "ID0101" in ids_in(seen), "a mail that was written late")
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert ids(seen.read_text()) == ["ID0006", "ID0005", "ID0100", "ID0101"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["history", "--sender", "a*@x.example"], "expected a whole address or a domain"),
        (["history", "--sender", ""], "expected a whole address or a domain"),
        (["history", "--action", "rejected"], "Did you mean 'reject'?|did you mean"),
        (["history", "--stage", "helo"], "is not a stage"),
        (["history", "--before", "yesterday"], "not a cursor"),
        (["history", "--before", "nan:ID"], "not a cursor"),
        (["history", "--subject", "!!"], "contains no word"),
        (["history", "--json", "--csv"], "choose one of"),
        (["history", "--follow", "--until", "1h"], "cannot be used with"),
        (["history", "--client", "mail.example.org"], "expected an IP address"),
        (["explain"], "no mail was named"),
        (["stats", "--by", "colour"], "Invalid value"),
        (["stats", "--plot", "x.png"], "use the file name x.svg"),
        (["stats", "--csv", "--json"], "choose one of"),
    ],
)
def test_mistakes_are_explained(place: Place, arguments: list[str], problem: str) -> None:
    done = place.run(*arguments)
    assert done.returncode == 2 and re.search(problem.replace("?", r"\?"), done.stderr), done.stderr


def test_an_empty_history_says_where_it_looked(place: Place) -> None:
    done = place.run("history")
    assert done.returncode == 0 and f"No mail has been recorded yet in {place.state}/history" in done.stderr
    place.add(1)
    assert "no matching mail" in place.run("history", "--action", "hold").stderr
    found = scanbridge("history", "--action", "hold", env=environment(SCANBRIDGE_CONFIG=str(place.file)))
    assert found.stderr.endswith(f"; configuration: {place.file} (use -c FILE for another one)\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_history_that_cannot_be_read_is_not_an_empty_one() -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's are private
        Path(directory).chmod(0o755)
        with closing(Place(Path(directory))) as place:
            place.add(1)
        for path in (place.file, place.state):
            path.chmod(0o755)
        for command in (["history"], ["explain", "a@b.example"], ["stats"]):
            done = scanbridge(*command, "-c", place.file, user="nobody", group="nogroup", extra_groups=[])
            assert done.returncode == 75 and "run this command as root or as the daemon's user" in done.stderr


# explain


@pytest.mark.parametrize(
    "key",
    [
        *("ID0001", "id0001", "SESSION", "QUEUED", "NEXT", "GGRID", "<1@sender.example>", "1@sender.example"),
        *("(id=ID0001", "ggrid=GGRID)", "NEXT:", " <1@sender.example>,", "message_id=<1@sender.example>"),
    ],
)
def test_any_key_leads_to_the_story(place: Place, key: str) -> None:
    """As it was copied out of a log or a bounce, and whenever it was."""
    place.add(1, at=place.now - 20 * 86400)
    place.add(2, session="", queue_id="", next_id="", ggrid="", message_id="<2@x>")
    assert place.says("explain", key).startswith(
        "Mail from <a@sender.example> to <b@example.org> was delivered to the next hop."
    )


@pytest.mark.parametrize("who", ["a@sender.example", "<b@example.org>", "SENDER.example", "@example.org"])
def test_an_address_finds_sender_and_recipient_since_yesterday(place: Place, who: str) -> None:
    place.add(1)
    place.add(2, at=place.now - 4 * 86400, message_id="<2@x>")
    assert place.says("explain", who).count("sent it to listener") == 1
    assert "2 mails match" in place.says("explain", who, "--since", "1w")


def test_several_mails_are_listed_and_the_newest_are_told(place: Place) -> None:
    for number in range(1, 6):
        place.add(number, message_id=f"<{number}@x>", subject=HOSTILE)
    told = place.says("explain", "a@sender.example", "--limit", "2")
    assert told.startswith("5 mails match a@sender.example since ")
    assert re.findall(r"(?m)^ +\d  \S+ \S+  (ID\d+) ", told) == [f"ID{number:04d}" for number in range(1, 6)]
    assert re.findall(r"Our id is (\w+)", told) == ["ID0001", "ID0002"]
    assert f"The newest 2 are explained below; for any other, run `scanbridge explain -c {place.file} ID`" in told
    assert "The newest one is explained below; " in place.says("explain", "a@sender.example", "--limit", "1")
    data = json.loads(place.says("explain", "a@sender.example", "--json"))
    assert (data["matches"], len(data["mails"]), len(data["others"])) == (5, 3, 2)


def test_options_narrow_the_question_or_replace_it(place: Place) -> None:
    place.add(1)
    place.add(2, recipients="c@example.org", message_id="<2@x>", subject="Urgent")
    assert "Our id is ID0002" in place.says("explain", "a@sender.example", "--recipient", "c@example.org")
    assert "Our id is ID0002" in place.says("explain", "--subject", "urgent")
    assert place.says("explain", "--sender", "a@sender.example").startswith("2 mails match since")


def test_the_commands_at_the_end_are_for_the_same_configuration(place: Place) -> None:
    place.add(1, action="reject", decision="bounce", rule="policy.bounce")
    told = place.says("explain", "ID0001")
    assert f"scanbridge history -c {place.file} --sender a@sender.example" in told
    assert scanbridge(*shlex.split(told.rpartition("scanbridge ")[2])).returncode == 0


def test_a_mail_that_was_never_seen_is_proved_absent(place: Place) -> None:
    place.add(1, 2, 3)
    place.add(9, stage="mail", sender="", recipients="", action="tempfail", mails=40)
    done = place.run("explain", "nobody@sender.example", "--client", "192.0.2.7")
    assert done.returncode == 3
    for expected in (
        "No mail was found for nobody@sender.example, client 192.0.2.7 between ",
        "For that time, it contains 43 mails: 40 tempfail, 3 relay.",
        "From <nobody@sender.example> in the whole history: 0 mails.",
        "From the domain sender.example during that time: 3 mails; the newest: ID0001 at ",
        "To the domain sender.example during that time: 0 mails.",
        "From the client 192.0.2.7 during that time: 43 mails",
        "40 refusals from that time were recorded without the sender",
        "the daemon does not answer",
        "mail with another envelope sender",
        "mail that another machine handled",
    ):
        assert expected in done.stdout, expected
    data = json.loads(place.run("explain", "nobody@sender.example", "--json").stdout)
    assert data["matches"] == 0 and data["absence"]["mails_of_that_time"] == {"tempfail": 40, "relay": 3}


def test_a_bare_word_is_told_how_to_be_found(place: Place) -> None:
    """It was only said not to be there, although `--subject` finds it."""
    place.add(1, subject="the minutes")
    done = place.run("explain", "minutes")
    assert done.returncode == 3 and "minutes was looked for as an id: give an address" in done.stdout


def test_an_id_of_ours_tells_when_it_was_made(place: Place) -> None:
    place.add(1)
    made = f"{int((place.now - 60) * 1000):X}ABCD0001"
    done = place.run("explain", made)
    assert done.returncode == 3 and f"{made} is an id that the bridge created at " in done.stdout
    assert "For that time, it contains 1 mail" in done.stdout


def test_a_mail_in_quarantine_was_said_never_to_have_been_seen(place: Place) -> None:
    """It was quarantined by a version without a history, or while the history could not be written to."""
    made = f"{int((place.now - 60) * 1000):X}ABCD0001"
    (place.state / "quarantine").mkdir()
    (place.state / "quarantine" / f"{made}.json").write_text(json.dumps({"id": made, "sender": "a@sender.example"}))
    for spelling in (made, made.lower(), f"id={made}"):
        done = place.run("explain", spelling)
        assert done.returncode == 3 and "has not seen it" not in done.stdout, done.stdout
        assert " is in the quarantine, but the history has no record of it" in done.stdout
        assert f"Next: scanbridge quarantine show -c {place.file} {made}\n" in done.stdout
    data = json.loads(place.run("explain", made, "--json").stdout)
    assert data["absence"]["is_in_quarantine"] and "quarantine show" in data["absence"]["next"][0]


@pytest.mark.parametrize(("length", "is_mentioned"), [(18, True), (20, True), (14, False)])
def test_an_incomplete_id_was_looked_for_without_a_word(place: Place, length: int, is_mentioned: bool) -> None:
    """One character was lost when the id was copied: the answer was that the bridge had not seen the mail."""
    done = place.run("explain", "1A1EB801B2C16070F8F0"[:length])
    said = f"The bridge's ids have 19 characters, but this one has {length}: copy the id again."
    assert done.returncode == 3 and (said in done.stdout) == is_mentioned, done.stdout


def test_the_worst_tag_comes_first(place: Place) -> None:
    """In alphabetical order, a harmless tag stood where the reason for the refusal was expected."""
    place.add(1, action="reject", tags="auth:spf-none,sender:impossible-domain,spam:gtube")
    assert "tags spam:gtube, sender:impossible-domain, auth:spf-none." in place.says("explain", "ID0001")
    assert "\tspam:gtube,sender:impossible-domain,auth:spf-none\n" in place.says("history")


def test_without_a_history_explain_says_so(tmp_path: Path) -> None:
    done = Place(tmp_path, "history: {enabled: false}\n").run("explain", "a@sender.example")
    assert done.returncode == 3
    assert "Nothing: no mail is recorded in " in done.stdout and "history.enabled is false" in done.stdout


# hidden addresses


def hidden(redaction: Redaction) -> dict[str, str]:
    return {
        "sender": redaction.address("a@sender.example"),
        "recipients": redaction.address("b@example.org"),
        "message_id": f"<{redaction.address('1@sender.example')}>",
    }


def test_hashed_addresses_are_found_by_whoever_knows_them(tmp_path: Path) -> None:
    questions = ["a@sender.example"], ["b@EXAMPLE.org"], ["--sender", "a@sender.example"], ["<1@sender.example>"]
    with closing(Place(tmp_path, "log: {addresses: hashed}\n")) as place:
        (place.state / "log-key").write_text("0123456789abcdef")
        place.add(1, **hidden(Redaction("hashed", b"0123456789abcdef")))
        for question in questions:
            told = place.says("explain", *question)
            assert "Our id is ID0001" in told and "@sender.example" not in told
        assert ids(place.says("history", "--recipient", "b@example.org", "--json")) == ["ID0001"]
        assert ids(place.says("history", "1@sender.example", "--json")) == ["ID0001"]
        done = place.run("history", "--sender", "sender.example")
        assert done.returncode == 2 and "give a whole address" in done.stderr


def test_with_domains_only_everyone_of_the_domain_is_found(tmp_path: Path) -> None:
    with closing(Place(tmp_path, "log: {addresses: domain}\n")) as place:
        place.add(1, **hidden(Redaction("domain")))
        done = place.run("explain", "a@sender.example")
        assert done.returncode == 0 and "Mail from <*@sender.example>" in done.stdout
        assert "the mails of everyone in that domain" in done.stderr
        assert ids(place.says("history", "--sender", "sender.example", "--json")) == ["ID0001"]


# stats


def numbers(shown: str) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in list(csv.reader(io.StringIO(shown)))[1:]}


def test_mails_are_counted_by_each_property(place: Place) -> None:
    place.add(1, 2, tags="x:a,x:b", recipients="a@example.org\nb@example.org")
    place.add(3, action="reject", decision="", sender="", client="", rule="")
    for by, expected in {
        "decision": {"deliver": 2, "(no decision)": 1},
        "action": {"relay": 2, "reject": 1},
        "tag": {"x:a": 2, "x:b": 2},
        "sender": {"a@sender.example": 2, "<>": 1},
        "recipient": {"b@example.org": 3, "a@example.org": 2},
        "client": {"192.0.2.7": 2, "(unknown)": 1},
        "rule": {"policy.deliver": 2, "(no rule)": 1},
        "listener": {"mx": 3},
        "tenant": {"(no tenant)": 3},
    }.items():
        assert numbers(place.says("stats", "--by", by, "--csv")) == expected, by
    assert numbers(place.says("stats", "--by", "action", "--sender", "sender.example", "--csv")) == {"relay": 2}


def test_hours_and_days_are_local_and_have_no_gaps(place: Place) -> None:
    """20:00 UTC is 01:30 of the next day in India."""
    evening = 1_799_956_800.0  # 2027-01-14 20:00 UTC
    place.add(1, 2, at=evening)
    place.add(3, at=evening + 3 * 3600)
    asked = ("--since", "2027-01-01", "--until", "2027-02-01", "--csv")
    india = numbers(place.says("stats", "--by", "hour", *asked, TZ=INDIA))
    assert india == {"2027-01-15 01:30": 2, "2027-01-15 02:30": 0, "2027-01-15 03:30": 0, "2027-01-15 04:30": 1}
    assert numbers(place.says("stats", "--by", "day", *asked, TZ=INDIA)) == {"2027-01-15": 3}
    assert numbers(place.says("stats", "--by", "day", *asked, TZ="UTC")) == {"2027-01-14": 3}


def test_the_rest_is_one_line(place: Place) -> None:
    for number in range(1, 6):
        place.add(*range(number * 10, number * 10 + number), sender=f"{number}@x.example")
    shown = numbers(place.says("stats", "--by", "sender", "--limit", "2", "--csv"))
    assert shown == {"5@x.example": 5, "4@x.example": 4, "(3 others)": 6}
    data = json.loads(place.says("stats", "--by", "sender", "--json"))
    assert data["mails"] == 15 and len(data["rows"]) == 5 and data["rows"][0]["bytes"] == 5000


@pytest.mark.parametrize("by", ["sender", "hour", "tag"])
def test_the_chart_is_a_picture_and_nothing_else(place: Place, tmp_path: Path, by: str) -> None:
    """Senders choose the labels: no element, script or link of theirs."""
    place.add(1, 2, sender='"<script>alert(1)</script>&\x1b"@x.example', tags="<image href='http://x'/>")
    file = tmp_path / "chart.svg"
    place.says("stats", "--by", by, "--plot", str(file))
    tags = {element.tag.rpartition("}")[2] for element in ET.parse(file).iter()}
    assert "rect" in tags and tags <= {"svg", "rect", "text", "line", "title"}
    assert "\x1b" not in file.read_text()


def test_a_chart_that_cannot_be_written_is_an_error(place: Place, tmp_path: Path) -> None:
    done = place.run("stats", "--plot", str(tmp_path / "missing" / "x.svg"))
    assert done.returncode == 1 and "cannot be written: No such file or directory" in done.stderr


# keys


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        *(("id=ABC", "ABC"), ("<x@y>", "<x@y>"), ("'4F1:'", "4F1"), ("ggrid=9a-b)", "9a-b")),
        *(("Message-ID: <x@y>", "<x@y>"), ("([ABC]),", "ABC"), ("id=[ABC]", "ABC"), ("[" * 5000 + "]" * 5000, "")),
        # A whole reply was looked for as one key.
        *(("550 5.7.1 The message was refused (id=ABC ggrid=9a-b)", "ABC"), ("250 2.0.0 Ok: queued as 4C1", "4C1")),
        ("said: 451 4.3.0 Internal problem (ggrid=9a-b)", "9a-b"),
        # The bracket at the end of an address was removed, and its mail was not found.
        *(("a@[192.0.2.1],", "a@[192.0.2.1]"), ("<[a]@x>", "<[a]@x>"), ("[a]@x", "[a]@x")),
    ],
)
def test_a_key_is_read_as_people_copy_it(typed: str, key: str) -> None:
    assert pasted_key(typed) == key


@pytest.mark.parametrize("what", ["192.0.2.7", "[192.0.2.7]", "2001:db8::7", "2001:DB8:0::7"])
def test_the_address_of_a_client_was_taken_for_a_domain(place: Place, what: str) -> None:
    """`explain 192.0.2.7` said that the bridge had not seen any such mail, although it had."""
    place.add(1, client="2001:db8::7" if ":" in what else "192.0.2.7")
    place.add(2, client="192.0.2.8", message_id="<2@x>")
    assert re.findall(r"Our id is (\w+)", place.says("explain", what)) == ["ID0001"]
    unknown = place.run("explain", "192.0.2.99")
    assert unknown.returncode == 3 and unknown.stdout.startswith("No mail was found for client 192.0.2.99 between ")
