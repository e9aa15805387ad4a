"""`scanbridge lists show | entries | add | delete`, against the real service."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.lists import session
from bridge.cli.progress import PlainMeter
from tests.lists.lists_kit import DEADLINE_S, OTHER, SAY_PEAK, TENANT, misbehaving, peak_kib, process, whole


def test_show_names_every_list(service):
    """The text has names and limits, the JSON everything."""
    shown = service.run("show", "--tenant", TENANT)
    assert shown.exit_code == 0
    assert "partners" in shown.output and "up to 3 " in shown.output and "Who we work with" in shown.output
    data = json.loads(service.run("show", "--json", "--tenant", TENANT).stdout)
    assert data["tenant"] == TENANT
    assert "blocked-senders" in [info["listName"] for info in data["lists"]]


def test_entries_are_added_from_arguments_files_and_standard_input(service, tmp_path):
    """All three sources work, with their comments."""
    (tmp_path / "a.csv").write_text("entry,comment\nfile@x.org,from a file\n")
    (tmp_path / "b.yml").write_text("- {entry: yaml@x.org, comment: from YAML}\n")
    given = service.run("add", "large", "one@x.org", "-f", str(tmp_path / "a.csv"), "-f", str(tmp_path / "b.yml"),
                        "--comment", "by hand")  # fmt: skip
    assert given.output == "large of the deployment: 3 entries added or updated\n"
    piped = service.run("add", "large", stdin="piped@x.org # from a pipe\n")
    assert piped.exit_code == 0
    piped = service.run("add", "large", "--file", "-", "--format", "jsonl", stdin='{"entry": "json@x.org"}')
    assert piped.exit_code == 0
    assert service.entries("large") == {
        "file@x.org": "from a file", "json@x.org": "", "one@x.org": "by hand", "piped@x.org": "from a pipe",
        "yaml@x.org": "from YAML",
    }  # fmt: skip


def test_a_tenants_list_is_separate_from_the_global_one(service):
    """--tenant chooses the scope of every command."""
    assert service.run("add", "large", "a@x.org", "--tenant", TENANT).exit_code == 0
    assert service.run("entries", "large").stdout == ""
    assert service.run("entries", "large", "--tenant", OTHER).stdout == ""
    assert service.run("entries", "large", "--tenant", TENANT).stdout == "a@x.org\n"
    assert service.run("delete", "large", "a@x.org", "--tenant", TENANT).exit_code == 0
    assert service.run("entries", "large", "--tenant", TENANT).stdout == ""


def test_delete_ignores_entries_that_do_not_exist(service):
    """Only existing entries are counted, and the others are not an error."""
    service.add("large", {"a@x.org": "", "b@x.org": ""})
    done = service.run("delete", "large", "--json", stdin="a@x.org # with a comment\nnobody@x.org\n")
    assert json.loads(done.stdout) == {
        "list": "large", "tenant": None, "given": 2, "confirmed": 2, "modified": 1, "not_done": 0, "uncertain": 0,
        "refused": {}, "problem": None, "exit_code": 0,
    }  # fmt: skip
    assert service.entries("large") == {"b@x.org": ""}


@pytest.mark.parametrize("kind", ["text", "csv", "jsonl", "yaml"])
def test_add_reads_what_entries_writes(service, kind, tmp_path):
    """The output of `entries` is valid input for `add`; all comments are kept, even odd ones."""
    held = {"a b": "two words", "ü": 'naïve, "quoted"', "plain": "", "# hash": "x # y", "10": "1"}
    service.add("notes", held)
    shown = service.run("entries", "notes", "--format", kind)
    saved = service.run("entries", "notes", "-o", str(tmp_path / "x"), "--format", kind)
    assert (shown.exit_code, saved.exit_code) == (0, 0)
    assert (tmp_path / "x").read_bytes() == shown.stdout_bytes
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]
    service.clear()
    assert service.run("add", "notes", "--format", kind, stdin=shown.stdout_bytes).exit_code == 0
    assert service.entries("notes") == held


def test_a_device_or_a_pipe_was_replaced_by_a_file(service, tmp_path):
    """`-o /dev/full`, by root, left a file there, with which other programs of the machine failed."""
    service.add("notes", {"a b": "two words"})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        saved = service.run("entries", "notes", "-o", str(pipe), "--format", "text")
        assert saved.exit_code == 0 and pipe.is_fifo()
        assert os.read(reader, 100_000).decode() == service.run("entries", "notes", "--format", "text").stdout
    finally:
        os.close(reader)
    disk = next((str(path) for path in Path("/dev").glob("loop[0-9]*") if os.access(path, os.W_OK)), "")
    if disk:  # only opened: if this fails, the list is empty
        service.clear()
        refused = service.run("entries", "notes", "-o", disk)
        assert refused.exit_code == 1 and "cannot be written: neither a file nor a pipe" in refused.output
        service.add("notes", {"a b": "two words"})
    full = service.run("entries", "notes", "-o", "/dev/full")
    assert full.exit_code == 1 and "/dev/full: cannot be written: No space left on device" in full.output
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "text"),
    [
        (["add", "large", "", "a@x.org"], None, 65, "an entry is empty"),
        (["add", "large", "-f", "missing.txt"], None, 65, "missing.txt: cannot read the file"),
        (["add", "large", "--format", "jsonl"], "nonsense", 65, "standard input:1: not JSON"),
        (["add", "large", "a", "--tenant", "x"], None, 2, "a tenant must be a UUID"),
        (["add", "large", "a", "--patience", "7"], None, 2, "needs a number and a unit"),
        (["add", "no-such-list", "a@x.org"], None, 1, "done: 0 of 1; not done: 1"),
        (["entries", "no-such-list"], None, 1, "list_not_found"),
        (["delete", "no-such-list", "a@x.org"], None, 1, "list_not_found"),
        (["add", "large", "good@x.org", "not an address"], None, 1, "the entry 'not an address' was refused"),
        (["add", "partners", "a@x.org", "b@x.org", "c@x.org", "d@x.org"], None, 1, "list_full"),
        (["entries", "large", "-o", "/dev/null/x"], None, 1, "cannot be written"),
    ],
)
def test_each_kind_of_error_has_its_exit_code(service, arguments, stdin, code, text):
    """A script can distinguish its own mistakes from refusals of the service."""
    result = service.run(*arguments, stdin=stdin)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_refused_entry_of_a_file_is_named_with_its_line(service, tmp_path):
    """The first one stops the command; an entry given as an argument has no line."""
    file = tmp_path / "feed.csv"
    file.write_text("entry,comment\na@x.org,first\nno address,second\n")
    done = service.run("add", "large", "--file", str(file))
    assert done.exit_code == 1 and f"large: stopped: {file}:3: the entry 'no address' was refused" in done.stderr
    assert "large: stopped: the entry '@' was refused" in service.run("add", "large", "@").stderr


def test_refused_entries_can_be_skipped(service):
    """With --keep-going the valid entries are added and the invalid ones named; the exit code is still 1."""
    feed = "".join(f"u{i:04}@x.org\n" for i in range(700)) + "no address\n@\n"
    done = service.run("add", "large", "--keep-going", stdin=feed)
    assert done.exit_code == 1
    assert done.stdout == "large of the deployment: 700 entries added or updated\n"
    assert "standard input:701: the entry 'no address' was refused" in done.stderr
    assert "standard input:702: the entry '@' was refused" in done.stderr
    assert len(service.entries("large")) == 700
    data = json.loads(service.run("add", "large", "--keep-going", "--json", "no address", "good@x.org").stdout)
    assert (list(data["refused"]), data["confirmed"], data["not_done"]) == (["no address"], 1, 0)


def test_a_wrong_key_exits_with_77(service, tmp_path):
    """The message mentions the problem with the key, but not the key."""
    from tests.lists.lists_kit import command

    wrong = tmp_path / "wrong-key"
    wrong.write_text("f" * 64)
    for arguments in (["show"], ["entries", "large"], ["add", "large", "a@x.org"], ["delete", "large", "a@x.org"]):
        result = command(service.url, wrong, *arguments)
        assert result.exit_code == 77 and "refuses the API key" in result.output
        assert f"; the key is in {wrong} (lists.api_key_file): replace it with one that" in result.output
        assert "`scanbridge service apikey create NAME`" in result.output and "f" * 64 not in result.output


def test_the_service_can_come_from_the_configuration(service, tmp_path, monkeypatch):
    """lists.url and lists.api_key_file are enough, and a missing key is reported."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rest = "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}\n"
    rest += "listeners: [{name: m, protocol: milter, address: '127.0.0.1:1'}]\n"
    (tmp_path / "with.yml").write_text(rest + f"lists: {{url: '{service.url}', api_key_file: {service.key_file}}}\n")
    (tmp_path / "without.yml").write_text(rest)
    (tmp_path / "plain.yml").write_text(rest + "lists: {url: 'http://192.0.2.1', api_key_file: k}\n")
    good = CliRunner().invoke(main, ["lists", "show", "-c", str(tmp_path / "with.yml")])
    assert good.exit_code == 0 and "partners" in good.output
    for name, text in (("without.yml", "the List API is not configured"), ("plain.yml", "unencrypted")):
        bad = CliRunner().invoke(main, ["lists", "show", "-c", str(tmp_path / name)])
        assert bad.exit_code == 78 and text in bad.output
    idle = CliRunner().invoke(main, ["lists", "refresh", "-c", str(tmp_path / "with.yml")])
    assert (idle.exit_code, idle.stderr) == (0, "nothing to refresh: no listener enforces a list\n")
    bad = CliRunner().invoke(main, ["lists", "show", "--url", "http://192.0.2.1", "--api-key-file", "x"])
    assert bad.exit_code == 78 and "unencrypted" in bad.output


def test_a_terminal_gets_a_progress_bar_and_a_pipe_none(service, tmp_path):
    """A terminal shows a bar with rate and remaining time; a log gets no control characters."""
    (tmp_path / "many.txt").write_text("".join(f"u{i}@x.org\n" for i in range(3000)))
    master, slave = pty.openpty()
    add = ("add", "large", "-f", str(tmp_path / "many.txt"))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with process(service.url, service.key_file, *add, stdout=subprocess.PIPE, stderr=slave, env=environment) as running:
        os.close(slave)
        seen = b""
        while chunk := _read(master):
            seen += chunk
        os.close(master)
        assert running.communicate(timeout=DEADLINE_S)[0] == "large of the deployment: 3,000 entries added or updated\n"
    assert "3,000 of 3,000" in seen.decode() and "/s" in seen.decode() and "0:00:00" in seen.decode()
    assert service.key not in seen.decode()
    assert service.run(*add).stderr == ""


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux reports EIO once the other side is closed
        return b""


def test_a_log_gets_a_line_every_five_seconds(capsys):
    """A log gets plain lines with rate and remaining time, but not one per batch."""
    now = [0.0]
    meter = PlainMeter("large", 4000, lambda: now[0])
    for second in range(1, 7):
        now[0] = float(second)
        meter(500)
    assert capsys.readouterr().err == "large: 2,500 of 4,000 entries (500/s, 3 s left)\n"


def test_a_full_disk_is_reported_and_a_closed_pipe_is_not(tmp_path):
    """A full disk leads to one line and exit code 1; a pipe closed by `head` leads to no message."""
    stream = whole(*(f"user{i:07}@example.org" for i in range(9000)))
    with misbehaving(tmp_path, lambda _: stream) as server, open("/dev/full", "w") as full:
        entries = (server.url, server.key_file, "entries", "large")
        with process(*entries, stdout=full, stderr=subprocess.PIPE) as running:
            said = running.communicate(timeout=DEADLINE_S)[1]
        assert (running.returncode, said) == (1, "cannot write to standard output: No space left on device\n")
        with process(*entries, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout.readline() == "user0000000@example.org\n"
            running.stdout.close()
            assert running.stderr.read() == ""
            assert running.wait(DEADLINE_S) == 1


def test_entries_are_streamed_in_constant_memory(tmp_path):
    """Forty thousand entries take no more memory than a hundred."""

    def peak_of(count: int) -> int:
        stream = whole(*(f"user{i:07}@example.org" for i in range(count)))
        with misbehaving(tmp_path, lambda _: stream) as server:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with process(server.url, server.key_file, "entries", "large", first=SAY_PEAK, **pipes) as running:
                output, status = running.communicate(timeout=DEADLINE_S)
        assert (running.returncode, output.count("\n")) == (0, count)
        return peak_kib(status)

    assert peak_of(40_000) - peak_of(100) < 4 * 1024


def test_the_example_in_the_documentation_works(service, tmp_path):
    """The Python example in docs/operate/lists.md runs as printed."""
    page = Path(__file__).parents[2] / "docs" / "operate" / "lists.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "api-key").write_text(service.key)
    program = example.replace("http://127.0.0.1:9081", service.url)
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "partners 3\n" in done.stdout and "1 added or updated\nbad@example.org ticket 4711\n" in done.stdout
    assert service.entries("blocked-senders") == {"bad@example.org": "ticket 4711", "new@example.org": "why"}


def test_the_documentation_has_every_exit_code():
    """The table in docs/operate/lists.md is complete."""
    page = (Path(__file__).parents[2] / "docs" / "operate" / "lists.md").read_text()
    codes = {value for name, value in vars(session).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes | {0, 2}


def test_an_entry_that_was_not_there_to_delete_is_said(service):
    """It may be misspelled, or a tenant's. Exit code 0: the list is as it was wanted."""
    done = service.run("delete", "large", "no-such@entry.example")
    assert done.exit_code == 0 and "1 entry was not in the list of the deployment" in done.stderr, done.output
    assert "--tenant" in done.stderr
