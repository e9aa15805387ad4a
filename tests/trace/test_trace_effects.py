"""A trace has no effect; what it is asked to test, it tests; what it shows cannot act."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.mail.message import Message, Spool
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, answer, free_port, result, running_bridge
from tests.daemon.process_kit import environment, scanbridge
from tests.filter.envelope_lists.envelope_lists_kit import BLOCK, TENANTS, door, fill, section
from tests.lists.lists_kit import TENANT, Service, running_service
from tests.trace.trace_kit import MAIL, Traces


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real service, with entries in its lists."""
    own = "  - {name: closed-mailboxes, category: sender, maxSize: 1000}\n"
    with running_service(tmp_path_factory.mktemp("lists"), more=own) as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Of a bridge with the configuration of all tests."""
    directory = tmp_path_factory.mktemp("plain")
    with running_bridge(directory) as bridge:
        yield Traces(directory, bridge)


LISTED = {
    "block": BLOCK,
    "block_recipients": ["closed-mailboxes"],
    "skip_scan": ["allowed-senders", "allowed-networks"],
}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[tuple[RunningBridge, Traces]]:
    """A bridge that has copies of the service's lists."""
    directory = tmp_path_factory.mktemp("listed")
    with door(directory, service, LISTED) as bridge:
        config = {"lists": section(service), "tenants": TENANTS}
        yield bridge, Traces(directory, bridge, config, lists=LISTED)


def everything_in(directory: Path) -> dict[str, tuple[int, int]]:
    found = sorted(directory.rglob("*"))
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_nothing_is_asked_delivered_or_stored(tmp_path: Path) -> None:
    """For every case of the policy: no connection to scanner or next hop, no file in the state directory."""
    policy = {"bounce": {"action": "reject", "keep_copy": True}, "drop": "quarantine"}
    config = {"policy": policy, "history": {"enabled": False}}  # the daemon writes that one whenever it likes
    with running_bridge(tmp_path, config) as bridge:
        traces = Traces(tmp_path, bridge, config)
        (tmp_path / "mail.eml").write_bytes(MAIL)
        before = everything_in(tmp_path / "state")
        done = traces.run("--to", "b@example.org")
        assert done.returncode == 0
        assert everything_in(tmp_path / "state") == before
        assert bridge.scanner.submissions == [] and bridge.next_hop.mails == []


def test_a_machine_without_state_stays_without(tmp_path: Path) -> None:
    """Neither the state directory nor a Maildir is created, not even by --probe; no port needs to be free."""
    (tmp_path / "bridge.yml").write_text(
        'scanner: {urls: ["http://127.0.0.1:1"], token_file: no-token}\n'
        f'listeners: [{{name: mx, address: "127.0.0.1:{free_port()}"}}]\n'
        f"relay: {{next_hop: 'maildir:{tmp_path}/Maildir'}}\nstate_directory: {tmp_path}/state\n"
    )
    (tmp_path / "mail.eml").write_bytes(MAIL)
    command = [sys.executable, "-m", "bridge", "trace", "-c", str(tmp_path / "bridge.yml"), str(tmp_path / "mail.eml")]
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [*command, "--probe", "--decision", "deliver"], capture_output=True, text=True, timeout=60,
        env=environment(TMPDIR=str(tmp_path / "tmp")),
    )  # fmt: skip
    assert done.returncode == 0 and f"maildir:{tmp_path}/Maildir" in done.stdout, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["bridge.yml", "mail.eml", "tmp"] and os.listdir(tmp_path / "tmp") == []


def test_a_release_token_is_recognised_and_not_used_up(tmp_path: Path) -> None:
    """A released mail would pass unscanned, however often somebody looks; once it has passed, it would be scanned."""
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge)
        conf = yaml_file.load(traces.file, Config)
        tokens = wiring.release_tokens(conf, tmp_path / "state")
        message = Message(Spool(1 << 20))
        message.write(MAIL)
        content = tokens.field(message, "a@client.example", ["b@example.org"], datetime.now(UTC)) + MAIL
        message.close()
        given = ("--from", "a@client.example", "--to", "b@example.org")
        for _ in range(2):
            steps = traces.steps(*given, content=content)
            assert steps["rule"][0]["rule"] == "released" and not steps["scanner"][0]["asked"]
        with bridge.client() as client:
            client.open()
            assert client.mail(content).startswith(b"250")
        assert bridge.scanner.submissions == []
        with sqlite3.connect(tmp_path / "state" / "released.sqlite") as used:
            assert used.execute("select count(*) from used_release_token").fetchone() == (1,)
        used.close()
        assert traces.steps(*given, content=content)["scanner"][0]["asked"]


@pytest.mark.parametrize(
    ("sender", "to", "address", "refused_by", "skipped_by"),
    [
        ("bad@sender.example", "b@example.org", None, "blocked-senders", None),
        ("good@sub.evil.example", "b@example.org", None, "blocked-domains", None),
        ("good@sender.example", "b@example.org", "192.0.2.7", "blocked-networks", None),
        ("unwanted@sender.example", "b@tenant.example", None, "blocked-senders", None),
        ("unwanted@sender.example", "b@example.org", None, None, None),
        ("good@sender.example", "gone@example.org", None, "closed-mailboxes", None),
        ("friend@sender.example", "b@example.org", None, None, "allowed-senders"),
        ("good@sender.example", "b@example.org", "203.0.113.9", None, "allowed-networks"),
        ("good@sender.example", "b@example.org", None, None, None),
    ],
)
def test_lists_are_asked_and_named(
    listed: tuple[RunningBridge, Traces], sender: str, to: str, address: str | None, refused_by: str | None,
    skipped_by: str | None,
) -> None:  # fmt: skip
    """The local copies of a running bridge, which has them from the real service; the bridge itself does the same."""
    bridge, traces = listed
    client = ("--remote-address", address) if address else ()
    steps = traces.steps("--from", sender, "--to", to, *client, "--decision", "deliver")
    with bridge.client() as real:
        real.open()
        if address:
            real.say(b"XFORWARD ADDR=" + address.encode())
        reply = real.say(b"MAIL FROM:<%b>" % sender.encode(), b"RCPT TO:<%b>" % to.encode())[1].decode()
    matched = {step["list"]: step for step in steps["list"] if step["entry"]}
    assert all(step["age_s"] < 600 and step["entries"] is not None for step in steps["list"])
    assert reply.startswith("550" if refused_by else "250")
    if refused_by:
        assert steps["rcpt"][0]["rule"] == f"lists.{refused_by}" and steps["rcpt"][0]["reply"].startswith("550 5.7.1")
        assert refused_by in matched and "rule" not in steps
    elif skipped_by:
        assert steps["rule"][0]["rule"] == f"lists.{skipped_by}" and skipped_by in matched
        assert not steps["scanner"][0]["asked"]
        assert f"X-Scan-Unscanned: list {skipped_by}" in steps["header"][0]["fields"]
    else:
        assert matched == {} and steps["scanner"][0]["asked"]
    if to.endswith("tenant.example"):
        assert matched["blocked-senders"]["tenant"] == TENANT


@pytest.mark.parametrize("without", ["tempfail", "accept"])
def test_a_list_without_a_local_copy_is_said(tmp_path: Path, service: Service, without: str) -> None:
    """And what follows from it."""
    config = {"lists": section(service, without_copy=without)}
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge, config, lists={"block": ["blocked-senders"]})
        steps = traces.steps("--from", "bad@sender.example", "--to", "b@example.org", "--decision", "deliver")
    assert steps["list"][0]["entries"] is None and "no local copy" in steps["list"][0]["text"]
    if without == "tempfail":
        assert steps["rcpt"][0]["rule"] == "lists.without_copy" and steps["rcpt"][0]["reply"].startswith("451 4.3.0")
        assert "so mail that it applies to is deferred" in steps["list"][0]["text"]
    else:
        assert steps["rule"][0]["action"] == "relay"
        assert "so it is not enforced" in steps["list"][0]["text"]


def test_a_list_of_mail_that_needs_no_scan_was_said_to_defer_mail(tmp_path: Path, service: Service) -> None:
    """Without a local copy of it, mail is scanned."""
    config = {"lists": section(service, without_copy="tempfail")}
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge, config, lists={"skip_scan": ["allowed-senders"]})
        steps = traces.steps("--from", "good@sender.example", "--to", "b@example.org", "--decision", "deliver")
    assert "has no local copy, so it is not enforced" in steps["list"][0]["text"]
    assert steps["scanner"][0]["asked"] and steps["rule"][0]["action"] == "relay"


def test_a_damaged_local_copy_is_said(tmp_path: Path, service: Service) -> None:
    """It is not the same as none: somebody has to look."""
    (tmp_path / "state" / "lists").mkdir(parents=True)
    (tmp_path / "state" / "lists" / "blocked-senders.deployment.copy").write_bytes(b"nonsense")
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge, {"lists": section(service)}, lists={"block": ["blocked-senders"]})
        steps = traces.steps("--to", "b@example.org", "--decision", "deliver")
    assert steps["list"][0]["problem"] == "it is damaged"


def test_the_scanner_is_asked_only_when_wanted(tmp_path: Path) -> None:
    """--scan sends the mail as the bridge would, and shows the answer."""
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge)
        bridge.scanner.reply = answer(200, result("bounce", verdict="spam", tags=["a:b"]))
        given = ("--from", "a@client.example", "--to", "b@example.org", "--remote-address", "192.0.2.7")
        steps = traces.steps(*given, "--helo", "mx.client.example", "--scan")
        with bridge.client() as client:
            client.open()
            client.say(b"XFORWARD ADDR=192.0.2.7 HELO=mx.client.example")
            client.mail(MAIL)
        traced, real = bridge.scanner.submissions
    assert (traced.parameters, traced.email) == (real.parameters, real.email)
    assert steps["decision"][0] | {"step": "", "text": "", "ggrid": ""} == {
        "step": "",
        "text": "",
        "ggrid": "",
        "decision": "bounce",
        "verdict": "spam",
        "tags": ["a:b"],
        "created": "2026-01-01T00:00:00Z",
        "completed": "2026-01-01T00:00:01Z",
        "supposed": False,
    }
    assert steps["reply"][0]["reply"].startswith("550 5.7.1")
    assert bridge.next_hop.mails == []


async def _nonsense(reader: Any, writer: Any) -> None:
    writer.write(b"\x1b]0;owned\x07\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    "reply",
    [
        answer(500, b'{"error": "\\u001b[2J"}'),
        answer(401),
        answer(200, b"\x1b[2J"),
        answer(200, result("deliver", verdict="\x1b[2J\r\nX-Evil: 1", tags=["\u202ea\nb"])),
        _nonsense,
    ],
    ids=["500", "401", "no JSON", "escapes", "no HTTP"],
)
def test_a_hostile_scanner_cannot_act(tmp_path: Path, reply: Any) -> None:
    """Its words are shown without control characters, and add no line and no header field."""
    with running_bridge(tmp_path) as bridge:
        bridge.scanner.reply = reply
        traces = Traces(tmp_path, bridge)
        done = traces.run("--to", "b@example.org", "--scan")
        steps = traces.steps("--to", "b@example.org", "--scan")
    assert done.returncode == 0
    assert not any(char in done.stdout + done.stderr for char in "\x1b\x07\u202e")
    assert not any(line.strip().startswith("X-Evil") for line in done.stdout.splitlines())
    assert all(
        field.startswith(("Received:", "X-Scan-")) for step in steps.get("header", []) for field in step["fields"]
    )


@pytest.mark.parametrize(
    "helo", ["\x1b[2J", "a b+c=d", "ä" * 300, "x\r\nMAIL FROM:<evil@example.org>", "<script>"], ids=ascii
)
def test_any_helo_is_only_a_word(plain: Traces, helo: str) -> None:
    """It reaches the scanner's question as it was given, or cut; it never becomes a command."""
    done = plain.run("--to", "b@example.org", "--helo", helo, "--decision", "deliver")
    steps = plain.steps("--to", "b@example.org", "--helo", helo, "--decision", "deliver")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert steps["scanner"][0]["envelope_from"] == ""
    if len(helo) < 80:
        assert steps["scanner"][0]["helo"] == helo


def test_next_hops_are_tested_only_when_wanted(tmp_path: Path) -> None:
    """--probe: the first one is down, so the second one gets the mail, as `Failover` decides."""
    down = f"smtp://127.0.0.1:{free_port()}"
    with running_bridge(tmp_path) as bridge:
        config = {"relay": {"next_hop": down, "next_hops": [down, bridge.next_hop.url]}}
        traces = Traces(tmp_path, bridge, config)
        given = ("--to", "b@example.org", "--decision", "deliver")
        assert [step["next_hop"] for step in traces.steps(*given)["next_hop"]] == [down]
        hops = traces.steps(*given, "--probe")["next_hop"]
        assert [(step["next_hop"], step["answers"]) for step in hops] == [(down, False), (bridge.next_hop.url, True)]
        alone = Traces(tmp_path, bridge, {"relay": {"next_hop": down}}).steps(*given, "--probe")
        assert alone["rule"][0]["rule"] == "next_hop" and alone["reply"][0]["reply"].startswith("451 4.4.1")
        assert bridge.next_hop.mails == []


ODD = {
    "empty": b"",
    "no header": b"\r\nbody\r\n",
    "no field": b"no colon\r\n\r\nbody\r\n",
    "no name": b"A: b\r\n: x\r\n\r\nbody\r\n",
    "no body": b"A: b\r\nC: d\r\n",
    "NUL": b"A: b\0c\r\n\r\nx\0y\r\n",
    "bare CR": b"A: b\rc\r\n\r\nbody\r\n",
    "not ASCII": b"\xff\xfe: \x1b[2J\r\n\r\n\xff",
    "long field": b"A: " + b"x" * 2_000_000 + b"\r\n\r\nbody\r\n",
    "dots": b"A: b\r\n\r\n.\r\n..\r\n.",
}


@pytest.fixture(scope="module", params=["smtp", "lmtp", "milter"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Of a listener for this protocol."""
    directory = tmp_path_factory.mktemp("traced")
    with running_bridge(directory, protocol=request.param) as bridge:
        yield Traces(directory, bridge, protocol=request.param)


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_any_file_gets_an_answer(traced: Traces, content: bytes) -> None:
    """A trace ends with what the client receives, and nothing of the file acts on the terminal."""
    done = traced.run("--to", "b@example.org", "--decision", "deliver", content=content)
    steps = traced.steps("--to", "b@example.org", "--decision", "deliver", content=content)
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert len(steps["reply"]) == 1 and steps["rule"][0]["action"] in ("relay", "reject")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--listener", "tset"), "test"),
        (("--scan", "--decision", "deliver"), "choose one"),
        (("--decision", "nothing"), "nothing"),
        (("--to", "x\r\nDATA"), "not a mail address"),
        (("--to", ""), "not a mail address"),
        (("--from", "a b@c"), "not a mail address"),
        (("--remote-address", "here"), "expected an IP address"),
    ],
    ids=["listener", "both", "decision", "line end", "empty", "space", "address"],
)
def test_wrong_arguments(plain: Traces, args: tuple[str, ...], said: str) -> None:
    """Exit code 2, with what is expected."""
    done = plain.run(*args)
    assert done.returncode == 2 and said in done.stderr


def test_a_large_mail_with_many_recipients(tmp_path: Path) -> None:
    """Larger than what is kept in memory, and 8-bit; the recipients' limit is the listener's."""
    content = b"Subject: \xc3\xa4\r\n\r\n" + b"\xc3\xa4\r\n.\r\n" * 200_000
    config = {"limits": {"max_recipients": 3}}
    with running_bridge(tmp_path, config) as bridge:
        traces = Traces(tmp_path, bridge, config)
        to = [word for number in range(5) for word in ("--to", f"u{number}@example.org")]
        steps = traces.steps(*to, "--decision", "deliver", content=content)
    assert [len(step["recipients"]) for step in steps["scanner"]] == [3, 2]
    assert steps["limits"][0]["size"] == len(content)


@pytest.mark.parametrize("file", ["/dev/zero", "large.eml"])
def test_a_file_of_any_size_was_read_into_memory(tmp_path: Path, file: str) -> None:
    """`/dev/zero` has no end; what is a little too large is still shown as the listener refuses it."""
    (tmp_path / "bridge.yml").write_text(
        'scanner: {urls: ["http://127.0.0.1:1"], token_file: no-token}\n'
        f'listeners: [{{name: mx, address: "127.0.0.1:{free_port()}"}}]\nlimits: {{max_message_size: 1 MiB}}\n'
        f"relay: {{next_hop: 'maildir:{tmp_path}/Maildir'}}\nstate_directory: {tmp_path}/state\n"
    )
    with (tmp_path / "large.eml").open("wb") as large:
        large.truncate(1 << 40)  # a hole
    done = scanbridge("trace", "-c", tmp_path / "bridge.yml", tmp_path / file)
    assert done.returncode == 1 and "is larger than 2,097,152 bytes" in done.stderr and done.stdout == ""
    (tmp_path / "large.eml").write_bytes(b"Subject: x\r\n\r\n" + b"x" * (1 << 20))
    done = scanbridge("trace", "-c", tmp_path / "bridge.yml", tmp_path / "large.eml")
    assert done.returncode == 0 and "MAIL is refused" in done.stdout and "552 5.3.4" in done.stdout
