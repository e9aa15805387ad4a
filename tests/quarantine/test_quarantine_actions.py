"""Actions on many mails: the same filters everywhere, nothing by accident, every failure reported."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from bridge.cli import main
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.mime.mail_text import html_as_text, read
from bridge.quarantine.locks import MAX_HELD
from bridge.testing import answer, result, until
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.quarantine.quarantine_kit import Desk, desk, let_go, waiting_hop
from tests.requirements import need

SUBJECTS = ["plain", "\u4f60\u597d\u4e16\u754c " * 12, "\U0001f389 won", "e\u0301" * 40, "\u05e9\u05dc\u05d5\u05dd 1"]
ACTIONS = ["release", "delete", "export", "block-sender", "allow-sender"]


def mail(subject: str, text: str = "x") -> bytes:
    return f"Subject: {subject}\r\n\r\n{text}\r\n".encode()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Five mails that nothing in these tests changes."""
    with desk(tmp_path_factory.mktemp("actions")) as made:
        made.bridge.scanner.reply = answer(200, result("quarantine", tags=["header:bad-date", "malware:eicar", "x"]))
        for number, subject in enumerate(SUBJECTS):
            made.send(mail(subject), sender=b"s%d@spam.example" % number)
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def target(action: str) -> list[str]:
    return ["/tmp"] if action == "export" else []


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_without_ids_and_filters_is_refused(here: Desk, action: str) -> None:
    """Nobody releases or deletes everything because a variable was empty."""
    refused = {
        "nothing": [],
        "an empty filter": ["--recipient", ""],
        "ids and filters": [here.ids[0], "--sender", "spam"],
        "filters and --all": ["--all", "--sender", "spam"],
    }
    for name, given in refused.items():
        done = here.call(action, "--yes", *given, *target(action))
        # Without `lists` in the configuration, the senders' commands stop there first.
        assert done.exit_code in ((2, 78) if action.endswith("sender") else (2,)), name
    assert len(here.ids) == len(SUBJECTS) and here.bridge.next_hop.mails == []


FILTERS = [
    ["--recipient", "b@example.org"], ["--sender", "s1@*"], ["--subject", "plain"], ["--since", "today"],
    ["--until", "2999-01-01", "--state", "kept"], ["--tag", "malware:*"], ["--client", "127.0.0.0/8"],
    ["--decision", "quarantine"],
    ["--state", "kept"], ["--listener", "test"], ["--tenant", "123e4567-e89b-12d3-a456-426614174000"], ["--all"],
]  # fmt: skip


@pytest.mark.parametrize("given", FILTERS, ids=lambda given: given[0])
def test_every_filter_of_list_works_for_every_action(here: Desk, given: list[str]) -> None:
    """A dry run acts on the mails that `list` shows, and shows them the same way."""
    shown = here.call("list", *[word for word in given if word != "--all"]).stdout
    for action in ("release", "delete", "export"):
        done = here.call(action, "--dry-run", *given, *target(action))
        rows = done.stdout.splitlines()[1:]
        assert (done.exit_code, rows) == (0, shown.splitlines()[1:]), done.output
        assert f"{len(rows):,} mail" in done.stderr and "nothing was changed" in done.stderr
    assert len(here.ids) == len(SUBJECTS) and here.bridge.next_hop.mails == []


def test_the_client_is_an_address_or_a_network(here: Desk) -> None:
    assert len(here.listed("--client", "127.0.0.1")) == 5 and here.listed("--client", "192.0.2.0/24") == []
    assert here.call("list", "--client", "127.0.0.1", "--limit", "2").stdout.count("\n") == 3
    assert here.call("list", "--client", "nonsense").exit_code == 2


@pytest.mark.parametrize("given", [["delete", "--sender", "s1@"], ["delete", "ID"], ["purge", "--older-than", "0s"]])
def test_without_a_terminal_nothing_is_deleted_without_yes(here: Desk, given: list[str]) -> None:
    """It says what and how many, and how to confirm. An answer in a pipe does not count."""
    words = [here.ids[1] if word == "ID" else word for word in given]
    done = here.run(*words)
    assert done.returncode == 2 and b"--yes" in done.stderr and b"nothing was deleted" in done.stderr
    assert here.ids[1].encode() in done.stderr and (b"1 mail (" in done.stderr or b"5 mails (" in done.stderr)
    assert len(here.ids) == len(SUBJECTS)


def test_a_person_is_shown_the_mails_and_asked(own: Desk) -> None:
    """No means no; yes deletes exactly what was shown, although more mail has arrived meanwhile."""
    for number in range(25):
        own.send(mail(f"number {number}"), sender=b"bad@spam.example")
    kept = own.send(mail("other"), sender=b"good@friend.example")
    code, said = own.on_terminal("delete", "--sender", "spam.example", answer="n")
    assert code == 1 and "Permanently delete 25 mails (" in said and "nothing was deleted" in said
    assert "number 24" in said and "... and 5 more" in said and "other" not in said
    assert len(own.ids) == 26
    code, said = own.on_terminal("delete", "--sender", "spam.example", answer="y")
    assert code == 0 and "25 of 25" in said and "25 of 25 mails deleted" in said
    assert own.ids == [kept]


def test_the_selection_is_made_before_the_question(own: Desk) -> None:
    """Mail that arrives while the question is on the screen is not deleted."""
    first = own.send(mail("first"), sender=b"bad@spam.example")
    late: list[str] = []

    class Slow(str):
        def encode(self, *args: str) -> bytes:  # called when the question is on the screen
            late.append(own.send(mail("late"), sender=b"bad@spam.example"))
            return super().encode(*args)

    code, said = own.on_terminal("delete", "--sender", "spam.example", answer=Slow("y"))
    assert code == 0 and first in said and own.ids == late


def test_a_bulk_action_goes_on_after_a_failure_and_sums_up(own: Desk) -> None:
    """Each failure is named; the exit code is that of the most serious one."""
    ids = [own.send(mail(f"{number}")) for number in range(3)]
    (own.directory / f"{ids[1]}.eml").unlink()
    done = own.call("delete", "--yes", ids[0], "NOSUCHMAIL", ids[1], ids[2])
    assert done.exit_code == 3
    assert done.stdout == f"{ids[0]}: deleted\n{ids[2]}: deleted\n"
    assert "NOSUCHMAIL: no such mail" in done.stderr and f"{ids[1]}: not deleted: no such mail" in done.stderr
    assert done.stderr.endswith("2 of 4 mails deleted; 2 not deleted (see above)\n")


def test_a_bulk_release_needs_a_confirmation_and_leaves_out_what_everyone_has(own: Desk) -> None:
    ids = [own.send(mail(f"{number}"), sender=b"good@friend.example") for number in range(3)]
    assert own.call("release", ids[0]).exit_code == 0
    refused = own.call("release", "--sender", "friend.example")
    assert refused.exit_code == 2 and "this would release 2 mails" in refused.stderr
    assert " to their recipients: add --yes" in refused.stderr
    assert len(own.bridge.next_hop.mails) == 1
    done = own.call("release", "--sender", "friend.example", "--yes")
    assert done.exit_code == 0 and "1 already released and" in done.stderr and "2 of 2 mails released" in done.stderr
    assert len(own.bridge.next_hop.mails) == 3
    done = own.call("release", "--sender", "friend.example", "--yes")
    assert done.exit_code == 0 and len(own.bridge.next_hop.mails) == 3


def test_several_mails_are_exported_but_only_one_to_a_pipe(own: Desk, tmp_path: Path) -> None:
    ids = [own.send(mail(f"{number}")) for number in range(3)]
    target_directory = tmp_path / "out"
    target_directory.mkdir()
    done = own.call("export", "--all", str(target_directory))
    assert done.exit_code == 0 and done.stdout.count(": exported to ") == len(ids)
    assert {path.stem for path in target_directory.glob("*.eml")} == set(ids)
    absent = own.call("export", "--all", str(tmp_path / "absent"))
    assert absent.exit_code == 1 and absent.stderr.count("\n") == 1 and "no directory" in absent.stderr
    forgotten = own.call("export", ids[0])
    assert forgotten.exit_code == 2 and f"'{ids[0]}' was read as the directory" in forgotten.stderr
    again = own.call("export", *ids[:2], str(target_directory))
    assert again.exit_code == 1 and again.stderr.count(": not exported: ") == 2
    unusable = own.call("export", ids[0], "/proc")
    assert unusable.exit_code == 1 and "[Errno" not in unusable.stderr
    assert f"{ids[0]}: not exported: /proc cannot be written to: No such file or directory; check" in unusable.stderr
    assert own.call("export", "--all", "-").exit_code == 2
    assert own.call("export", "--subject", "1", "-").stdout_bytes.endswith(b"x\r\n")


def test_purge_takes_filters_and_shows_first(own: Desk) -> None:
    spam = own.send(mail("x"), sender=b"bad@spam.example")
    kept = own.send(mail("y"), sender=b"good@friend.example")
    shown = own.call("purge", "--older-than", "0s", "--sender", "spam", "--dry-run")
    assert spam in shown.stdout and kept not in shown.stdout and "would delete 1 mail" in shown.stderr
    assert own.call("purge", "--older-than", "0s", "--sender", "spam", "--yes").stdout == "1 deleted\n"
    assert own.ids == [kept]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 132, 300])
def test_one_line_per_mail_at_any_width(here: Desk, columns: int) -> None:
    """No line is longer than the terminal, in cells, and the columns of all lines are aligned."""
    code, said = here.on_terminal("list", columns=columns)
    lines = said.splitlines()
    assert code == 0 and len(lines) == len(SUBJECTS) + 1
    assert [line.split()[0] for line in lines[1:]] == [
        mail_id[: columns - 1] + "\u2026" * (columns < 20) for mail_id in here.ids[::-1]
    ]
    assert all(cell_len(line) <= columns for line in lines)
    if columns >= 80:
        # All of them are `kept`: without the room for that, the other columns get it.
        state = [("STATE", "kept")] if columns == 300 else []
        assert lines[0].split() == ["ID", "TIME", "FROM", "TO", "SUBJECT", "WHY", *dict(state)]
        for name, beginning in (("FROM", "s"), ("TO", "b@"), ("WHY", "malw"), *state):
            place = lines[0].index(name)
            assert all(_from_cell(line, place).startswith(beginning) for line in lines[1:]), name


def test_what_all_mails_have_in_common_leaves_its_room_to_the_others(own: Desk) -> None:
    """At 100 columns, sender, recipient, subject and reason were cut to about 14 characters each."""
    subject = "A subject that is longer than any terminal, and then some more words"
    first, second = own.send(mail(subject)), own.send(mail(subject))
    _, said = own.on_terminal("list", columns=100)
    header, *lines = said.splitlines()
    assert "STATE" not in header and all(" b@example.org " in line and "a@client.example " in line for line in lines)
    assert all(subject[:16] in line for line in lines)
    assert own.call("release", first).exit_code == 0
    _, said = own.on_terminal("list", columns=100)
    assert "STATE" in said and "released" in said and second in said


def _from_cell(line: str, place: int) -> str:
    """What begins at this column of the screen."""
    at = 0
    for i, char in enumerate(line):
        if at >= place and cell_len(char):
            return line[i:]
        at += cell_len(char)
    return ""


def test_a_pipe_gets_whole_cells_and_no_colours(here: Desk) -> None:
    """Whatever the size of the terminal, the worst tag comes first."""
    rows = [line.split("\t") for line in here.call("list").stdout.splitlines()]
    assert {len(row) for row in rows} == {7}
    assert rows[5][2:] == ["s0@spam.example", "b@example.org", "plain", "malware:eicar,header:bad-date,x", "kept"]
    assert rows[4][4] == SUBJECTS[1].strip()
    wide = [line.split("\t") for line in here.call("list", "--wide").stdout.splitlines()]
    assert wide[0][7:] == ["DECISION", "VERDICT", "SIZE", "CLIENT", "HELO", "LISTENER", "TENANT"]
    assert here.call("list", "--wide", "--csv").exit_code == 2


def test_csv_is_safe_in_a_spreadsheet(own: Desk) -> None:
    """RFC 4180; no cell is a formula, and quotes, commas and line ends stay in their cell."""
    subjects = ('=HYPERLINK("http://evil.example","x")', "+1", "-1+1", "@SUM(1)", ' "a", b', "a;=1+1", 'a;"=1+1&";')
    for subject in (*subjects, "plain"):
        own.send(mail(subject), sender=b"=1@evil.example")
    done = own.run("list", "--csv")
    assert done.stdout.endswith(b"\r\n") and done.returncode == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode(), newline=""), strict=True))
    assert [row["subject"] for row in rows[::-1]] == [
        "'=HYPERLINK(\"http://evil.example\",\"x\")", "'+1", "'-1+1", "'@SUM(1)", '"a", b', "a;'=1+1",
        "a;'\"=1+1&\";", "plain",
    ]  # fmt: skip
    assert rows[0]["from"] == "'=1@evil.example" and rows[0]["state"] == "kept" and rows[0]["id"] == own.ids[-1]
    for row in csv.reader(io.StringIO(done.stdout.decode(), newline=""), delimiter=";"):
        assert not any(cell.lstrip()[:1] in "=+-@" for cell in row if cell), row


def test_show_has_text_attachments_scores_and_rule(own: Desk) -> None:
    """The text is plain, and each attachment has its type, size and SHA-256."""
    content = (
        b"Subject: x\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
        b"<style>p {}</style><p>Pay <a href='http://evil.example/x'>your bank</a></p><p>\xc3\xbc\x1b[31m</p>\r\n"
        b"--b\r\nContent-Type: application/pdf; name=bill.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\naGVsbG8=\r\n"
        b"--b--\r\n"
    )
    scores = [{"name": "mime:macro", "score": 7}, {"name": "phishing model", "score": 1.5}]
    scoring = {"rule": "rule 4 (tags mime:*)", "total": 8.5, "scores": scores}
    tags = ["header:bad-date", "mime:macro"]
    own.bridge.scanner.reply = answer(200, result("quarantine", tags=tags, scoring=scoring))
    mail_id = own.send(content)
    shown = own.call("show", mail_id).stdout
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert f"attachment:  bill.pdf, application/pdf, 5 B, sha256 {digest}\n" in shown
    assert "--- text, from HTML ---\nPay your bank <http://evil.example/x>\n\n\u00fc?[31m\n" in shown
    assert "rule:        policy.quarantine\n" in shown and "tags:        mime:macro, header:bad-date\n" in shown
    assert "scan rule:   rule 4 (tags mime:*)\nscores:      8.5 (mime:macro 7, phishing model 1.5)\n" in shown
    about = json.loads(own.call("show", "--json", mail_id).stdout)
    assert about["facts"]["scoring"] == scoring
    assert about["attachments"] == [{"name": "bill.pdf", "type": "application/pdf", "size": 5, "sha256": digest}]
    assert about["text"].startswith("Pay your bank")


def test_show_made_up_scores_that_nobody_had_reported(own: Desk) -> None:
    """They were the defaults of the included service, whatever service had decided with whatever scores."""
    own.bridge.scanner.reply = answer(200, result("quarantine", tags=["mime:macro"]))
    shown = own.call("show", own.send()).stdout
    assert "scan rule:   not reported by the scanner\nscores:      not reported by the scanner\n" in shown
    own.bridge.scanner.reply = answer(200, result("quarantine", scoring={"rule": "rule 1 (tags malware:*)"}))
    assert "scan rule:   rule 1 (tags malware:*)\nscores:      none\n" in own.call("show", own.send()).stdout


def test_show_names_what_a_record_does_not_have(own: Desk) -> None:
    """A mail that was quarantined without a decision, and one that an older version stored."""
    mail_id = own.send()
    record = own.directory / f"{mail_id}.json"
    data = json.loads(record.read_text())
    data["facts"] = {"reason": "unreachable"}
    record.write_text(json.dumps(data))
    shown = own.call("show", mail_id).stdout
    assert "rule:        not recorded: stored by an older version\nreason:      unreachable\n" in shown
    assert "scores:      none: the scanner made no decision about this mail\n" in shown and "scan rule:" not in shown


def test_a_long_text_is_cut_and_says_so(own: Desk) -> None:
    mail_id = own.send(b"Subject: x\r\n\r\n" + b"line\r\n" * 1000 + b"y" * 900 + b"\r\n")
    shown = own.call("show", mail_id).stdout
    assert shown.count("\nline\n") >= 100 and "--- 802 more lines: `show --raw` prints all of them ---" in shown


def test_a_wrong_id_names_the_nearest_one_and_is_never_guessed(here: Desk) -> None:
    """A beginning of an id is not accepted: it may have been cut off while copying."""
    mail_id = here.ids[0]
    wrong = mail_id[:-1] + ("0" if mail_id[-1] != "0" else "1")
    two = wrong[:8] + ("0" if wrong[8] != "0" else "1") + wrong[9:]
    for given in (wrong, two, mail_id[:-1], mail_id.lower()):
        done = here.call("delete", "--yes", given)
        assert done.exit_code == 3 and "did you mean 1A" in done.stderr, done.stderr
    done = here.call("show", "NOSUCHMAIL")
    assert f"in the quarantine at {here.directory}" in done.stderr and "quarantine list" in done.stderr
    assert len(here.ids) == len(SUBJECTS)


def test_an_empty_quarantine_says_where_it_is(own: Desk) -> None:
    assert own.call("list").stderr == f"no mail in quarantine at {own.directory}\n"
    chosen = CliRunner().invoke(main, ["quarantine", "list"], env={"SCANBRIDGE_CONFIG": str(own.config)})
    assert chosen.stderr == (
        f"no mail in quarantine at {own.directory}; configuration: {own.config} (use -c FILE for another one)\n"
    )
    own.send()
    assert own.call("list", "--sender", "nobody").stderr == f"no matching mail (1 in quarantine at {own.directory})\n"


def test_an_empty_id_is_named(here: Desk) -> None:
    """An unset variable of a script."""
    done = here.call("delete", "--yes", "")
    assert done.exit_code == 3 and done.stderr.startswith("an id is empty; ")
    assert len(here.ids) == len(SUBJECTS)


def test_a_whole_address_does_not_select_longer_ones(own: Desk) -> None:
    """`--sender ann@...` with `--yes` deletes no mail of joann@..."""
    kept = own.send(mail("x"), b"ann@example.org", sender=b"joann@partner.example")
    assert own.call("delete", "--yes", "--sender", "ann@partner.example").exit_code in (0, 1)
    assert own.call("delete", "--yes", "--recipient", "nn@example.org").exit_code in (0, 1)
    assert own.ids == [kept]
    assert "x" in own.call("list", "--sender", "ann").stdout
    assert "x" in own.call("list", "--recipient", "Ann@EXAMPLE.org").stdout


def test_the_question_says_how_many_were_never_released(own: Desk) -> None:
    """Those mails exist nowhere else."""
    ids = [own.send(mail(f"{number}")) for number in range(3)]
    assert "; none of them was ever released: add --yes" in own.call("delete", "--all").stderr
    assert own.call("release", ids[0]).exit_code == 0
    assert "; 2 of them were never released: add --yes" in own.call("delete", "--all").stderr
    assert own.call("delete", "--yes", *ids[1:]).exit_code == 0
    assert "released" not in own.call("delete", "--all").stderr.splitlines()[-1]


def test_a_mail_released_to_one_of_two_says_so(own: Desk) -> None:
    mail_id = own.send(mail("x"), b"one@example.org", b"two@example.org")
    assert own.call("release", mail_id, "--to", "two@example.org").exit_code == 0
    assert "state:       kept (released to 1 of 2 recipients)\n" in own.call("show", mail_id).stdout
    again = own.call("release", mail_id, "--to", "two@example.org")
    assert again.exit_code == 4 and "two@example.org" in again.stderr and "--again" in again.stderr
    assert own.call("release", mail_id).exit_code == 0
    assert [mail.commands[2] for mail in own.bridge.next_hop.mails][1].startswith(b"RCPT TO:<one@example.org>")


def next_line(running: subprocess.Popen[bytes]) -> bytes:
    """What it writes to standard error next; fails if it writes nothing."""
    assert running.stderr is not None
    assert select.select([running.stderr], [], [], 60)[0], "it wrote nothing"
    return running.stderr.readline()


def test_an_interrupted_bulk_action_says_how_far_it_came(own: Desk) -> None:
    """Once a mail is sent, its answer is awaited and recorded: its recipients have it."""
    ids = [own.send(mail(f"{number}")) for number in range(MAX_HELD + 2)]
    with waiting_hop(own.bridge) as hop:
        own.use(hop.url)
        running = own.start("release", *ids)
        for _ in range(MAX_HELD):
            assert hop.heard.acquire(timeout=60)
        running.send_signal(signal.SIGINT)
        assert next_line(running).startswith(b"interrupted: finishing the mails that are being sent")
        let_go(own.bridge, hop)
        _, said = running.communicate(timeout=60)
    expected = f"interrupted: {MAX_HELD} of {MAX_HELD + 2} mails released; 2 not released\n".encode()
    assert running.returncode == 130 and said == expected, said
    assert Counter(each["state"] for each in own.listed()) == {"released": MAX_HELD, "kept": 2}


def test_interrupted_twice_a_bulk_action_ends_at_once(own: Desk) -> None:
    """The next hop may never answer."""
    ids = [own.send(mail(f"{number}")) for number in range(2)]
    with waiting_hop(own.bridge) as hop:
        own.use(hop.url)
        running = own.start("release", *ids)
        for _ in ids:
            assert hop.heard.acquire(timeout=60)
        running.send_signal(signal.SIGINT)
        next_line(running)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=50)  # shorter than the next hop may take
        let_go(own.bridge, hop)
    assert running.returncode == 130 and b"interrupted: 0 of 2 mails released; 2 not" in said, said
    assert {each["state"] for each in own.listed()} <= {"interrupted", "unsure"}  # recipients may have them


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a</p><p>b", "a\n\nb"),
        ("1 < 2 &lt;b&gt; &amp;", "1 < 2 <b> &"),
        ("x<!-- hidden <p> -->y<script>z</script >w", "xyw"),
        ("<A class=x HREF = 'http://e.example/?a=1&amp;b=2'>bank</a>", "bank <http://e.example/?a=1&b=2>"),
        ("<img src=x alt='logo'><td>a<td>b", "[logo] a b"),
        ("<!DOCTYPE html><style>p {}</style>a<!-- never ends", "a"),
        ("a<script>never ends", "a"),
    ],
)
def test_html_is_shown_as_text(html: str, text: str) -> None:
    assert html_as_text(html) == text


@pytest.mark.parametrize("number", ["&#" + "9" * 4400 + ";", "&#" + "0" * 4400 + "65;", "&#x" + "f" * 4400 + ";"])
def test_a_number_that_python_refuses_to_read_kept_a_mail_from_being_shown(number: str) -> None:
    """In a text, in the address of a link and in the name of a picture."""
    html = f'<p>a{number}b</p><a href="http://x/{number}">c</a><img alt="{number[:150]}">'
    assert html_as_text(html).startswith(("a\ufffdb", "aAb"))


@pytest.mark.parametrize(
    "piece", few(["<!--", "<a ", "&", "<div>", "<![CDATA[", "<!", "</", "<?", "<script>", "<a href=", "<", "&#x"], 5)
)
def test_hostile_html_takes_no_time(piece: str) -> None:
    """The standard parser takes a minute for a quarter of a megabyte of some of these."""
    assert fair_cpu_s(lambda: html_as_text((piece * 262144)[:262144])) < 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\r\n",
        b"Content-Type: multipart/mixed\r\n\r\nx",
        b"Content-Type: text/plain; charset=punycode\r\n\r\n" + b"a-" * 99999,
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * 9999,
        b"Content-Type: text/plain; charset=no-such\r\n\r\n\xff\x00",
        b"Content-Type: message/rfc822\r\n\r\nSubject: y\r\n\r\nz",
    ],
)
def test_a_broken_mail_is_read_without_an_error(content: bytes) -> None:
    assert fair_cpu_s(lambda: read(content)) < 5


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_list_stays_quick(tmp_path: Path, count: int) -> None:
    """Ten thousand mails: a second of CPU time on a slow machine, most of it for starting Python."""
    directory = tmp_path / "state" / "scanbridge-demo" / "quarantine"
    directory.mkdir(parents=True)
    about = {"sender": "a@spam.example", "recipients": ["b@example.org"], "facts": {"tags": ["spam"]}}
    for number in range(count):
        mail_id = f"1A1E{number:015X}"
        (directory / f"{mail_id}.eml").write_bytes(b"Subject: x\r\n\r\nx\r\n")
        moment = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}+00:00"
        (directory / f"{mail_id}.json").write_text(json.dumps({**about, "id": mail_id, "time": moment}))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "bridge", "quarantine", "list"]
    for limit_s in (60 * count / 10_000, 15):  # the first run also builds the index
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.count(b"\n") == 101
        assert after.ru_utime - before.ru_utime < limit_s


def test_root_finds_the_mail_of_the_installed_daemon(tmp_path: Path) -> None:
    """Without any option: the configuration is in /etc/scanbridge, and its state where only the unit says."""
    need("unshare", root=True)
    etc = tmp_path / "etc"
    (etc / "scanbridge").mkdir(parents=True)
    for name in ("passwd", "group", "nsswitch.conf"):
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), etc / name)
    (etc / "scanbridge" / "token").write_text("a-token-of-the-test-suite\n")
    (etc / "scanbridge" / "bridge.yml").write_text(
        "scanner: {urls: ['http://127.0.0.1:1'], token_file: token}\nlisteners: [{name: mx, address: '127.0.0.1:2'}]\n"
        "relay: {next_hop: 'maildir:/nowhere'}\n"
    )
    script = 'mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/scanbridge && mount --bind "$0" /etc && exec "$@"'
    hidden = ("STATE_DIRECTORY", "XDG_STATE_HOME", "SCANBRIDGE_CONFIG")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(tmp_path)}
    command = ["unshare", "--mount", "sh", "-c", script, str(etc), sys.executable, "-m", "bridge", "quarantine", "list"]
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert listed.stderr == (
        "no mail in quarantine at /var/lib/scanbridge/quarantine; "
        "configuration: /etc/scanbridge/bridge.yml (use -c FILE for another one)\n"
    )


def test_a_release_to_an_address_without_a_domain_is_refused(here: Desk) -> None:
    """It would go to whatever domain the next hop adds. `postmaster` alone is valid."""
    done = here.call("release", "--all", "--to", "nobody", "--dry-run")
    assert done.exit_code == 2 and "nobody@example.org" in done.stderr
    assert here.call("release", "--all", "--to", "Postmaster", "--dry-run").exit_code == 0


@pytest.mark.parametrize("action", [*ACTIONS, "purge"])
def test_an_action_takes_an_empty_sender_for_a_mistake(here: Desk, action: str) -> None:
    """It may be an unset variable, and would select all bounces; `<>` is the null sender."""
    refused = here.call(action, "--sender", "", "--dry-run", *target(action))
    assert refused.exit_code == 2 and "'<>'" in refused.stderr, refused.output
    assert here.call("list", "--sender", "").exit_code == here.call("list", "--sender", "<>").exit_code == 0
    assert here.call("delete", "--sender", "<>", "--dry-run").stderr.endswith("delete 0 mails; nothing was changed\n")


# The history


def history_of(own: Desk) -> Path:
    """As soon as the first mail is recorded in it."""
    directory = own.bridge.directory / "state" / "history"
    until(lambda: SqliteHistory(directory).find(HistoryQuery()), "the history")
    return directory


def test_what_an_operator_does_is_noted_in_the_history(own: Desk) -> None:
    first, second, third = (own.send() for _ in range(3))
    store = SqliteHistory(history_of(own))
    assert own.call("release", first).exit_code == 0
    assert own.call("release", second, "--to", "c@elsewhere.example").exit_code == 0
    assert own.call("delete", first, "--yes").exit_code == 0
    assert own.call("purge", "--older-than", "0s", "--yes").exit_code == 0
    noted = [(event.event, event.text.partition(": ")[0]) for event in store.later([first])]
    assert noted == [("released", "to b@example.org"), ("deleted", "")]
    assert [event.event for event in store.later([second])] == ["released", "deleted"]
    assert store.later([second])[0].text.startswith("to c@elsewhere.example: 250 ")
    assert [(event.event, bool(event.by)) for event in store.later([third])] == [("deleted", True)]


def test_a_release_that_failed_is_noted_too(own: Desk) -> None:
    mail_id = own.send()
    store = SqliteHistory(history_of(own))
    own.bridge.next_hop.replies[b"RCPT"] = b"550 5.1.1 no such user"
    assert own.call("release", mail_id).exit_code != 0
    [event] = store.later([mail_id])
    assert event.event == "release failed" and "no such user" in event.text


def test_a_release_to_some_recipients_was_noted_as_failed(own: Desk) -> None:
    """They have the mail, but according to the history nobody had it."""
    mail_id = own.send()
    store = SqliteHistory(history_of(own))
    own.bridge.next_hop.replies[b"RCPT <x@example.org>"] = b"550 5.1.1 Unknown"
    assert own.call("release", mail_id, "--to", "b@example.org", "--to", "x@example.org").exit_code == 1
    [event] = store.later([mail_id])
    assert event.event == "released in part"
    assert event.text.startswith("to b@example.org, x@example.org: 1 of 2 recipients have it; 550 5.1.1 Unknown")


def test_a_history_that_cannot_be_written_does_not_stop_a_release(own: Desk) -> None:
    """One warning, however many mails."""
    ids = [own.send() for _ in range(3)]
    history = history_of(own)
    for path in history.glob("later.db*"):
        path.unlink()
    (history / "later.db").mkdir()
    done = own.call("release", *ids)
    assert done.exit_code == 0 and len(own.bridge.next_hop.mails) == 3
    assert done.stderr.count("the history cannot be written to") == 1
    shutil.rmtree(history)
    done = own.call("delete", ids[0], "--yes")
    assert done.exit_code == 0 and "history" not in done.stderr and not history.exists()
