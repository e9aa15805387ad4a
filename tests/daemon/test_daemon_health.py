"""What `status`, /readyz, `top` and the page at / say when mail is not scanned, not delivered or not accepted.

Real daemons: with a scanner that is dead, refuses the token or hangs, and next hops that are down, refuse or hang.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.status import table
from bridge.config.model import load
from bridge.daemon.quarantine_upkeep import _not_writable
from bridge.daemon.what_is_wrong import _deferred, _list, _rejected
from bridge.testing import Background, FakeScanner, answer, free_port, result
from tests.daemon.health_kit import bridge_with, dead_hop, says, silent_server, state, status
from tests.daemon.process_kit import get, parts, scanbridge, start, until, write_config
from tests.recipients.recipients_kit import next_hop
from tests.rewriting import rewrite

SECOND_TENANT = "0b8e0000-0000-4000-8000-000000000002"


def dead_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


@contextmanager
def scanner_that(reply: bytes, status_reply: bytes | None = None) -> Iterator[str]:
    background, scanner = Background(), FakeScanner()
    scanner.reply = reply
    if status_reply is not None:
        scanner.status = status_reply
    background.run(scanner.start())
    try:
        yield scanner.url
    finally:
        background.run(scanner.stop())
        background.close()


# The scanner


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_scanner_is_the_first_thing_that_is_said(tmp_path: Path, workers: int) -> None:
    """By `status` (exit code 1), by /readyz (503), by `top --once` and at /, before any mail has come."""
    url = dead_url()
    with bridge_with(tmp_path, url, workers=workers) as bridge:
        end = "; all mail is being deferred"
        until(says(bridge, f"NOT SCANNING: scanner {url}: ", end), "the problem")
        code, lines = status(bridge)
        assert code == 1 and lines[0].startswith("NOT SCANNING: ") and lines[0].endswith(end)
        assert "not ready" in lines[1]
        code, text = get(bridge.admin, "/readyz")
        assert code == 503 and text.startswith("NOT SCANNING: ") and text.endswith(f"{end}\n")
        shown = scanbridge("top", "--once", "--interval", "0.1", "-c", tmp_path / "bridge.yml")
        assert shown.returncode == 1 and shown.stdout.startswith("NOT SCANNING: ")
        assert "<strong>NOT SCANNING: " in get(bridge.admin, "/")[1]
        assert get(bridge.admin, "/livez") == get(bridge.admin, "/healthz") == (200, "ok\n")


def test_a_refused_token_is_named(tmp_path: Path) -> None:
    """The example of the documentation, word for word."""
    refused = answer(401, b'{"error": "unauthorized"}')
    with scanner_that(refused, refused) as url, bridge_with(tmp_path, url) as bridge:
        expected = "NOT SCANNING: token refused (401); all mail is being deferred"
        until(says(bridge, expected), "the problem")
        code, lines = status(bridge)
        assert (code, lines[0]) == (1, expected)
        assert get(bridge.admin, "/readyz") == (503, f"{expected}\n")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_token_without_the_permission_to_scan_is_named_after_the_first_mail(tmp_path: Path, workers: int) -> None:
    """The status request succeeds, so only a mail can show it; `check` sends a test mail, and agrees."""
    refused = answer(403, b'{"error": "forbidden", "message": "the token lacks scan"}')
    with scanner_that(refused) as url, bridge_with(tmp_path, url, workers=workers) as bridge:
        until(lambda: state(bridge)["scanner"][0]["status"] == "GREEN", "the status")
        assert f"{url}: GREEN, no mail scanned with this configuration yet" in "\n".join(status(bridge)[1])
        assert bridge.send().startswith("451 4.3.5 ")
        until(says(bridge, "NOT SCANNING: ", "; all mail is being deferred"), "the problem")
        code, lines = status(bridge)
        assert code == 1 and "403 forbidden the token lacks scan" in lines[0]
        line = f"scanner        {url}: not scanning (403 forbidden the token lacks scan), as of "
        assert any(shown.startswith(line) for shown in lines)
        shown = scanbridge("check", "-c", tmp_path / "bridge.yml")
        assert shown.returncode == 1
        assert "it does not scan mail (its status is GREEN)" in shown.stdout
        assert "give this token the permission to scan" in shown.stdout


def test_a_scanner_that_is_back_scans_the_first_mail_without_a_failure(tmp_path: Path) -> None:
    """The permission is given while no mail comes: the next test mail finds out."""
    background, scanner = Background(), FakeScanner()
    scanner.reply = answer(403, b'{"error": "scan_source_disabled"}')
    background.run(scanner.start())
    try:
        with bridge_with(tmp_path, scanner.url) as bridge:
            assert bridge.send().startswith("451 ")
            until(says(bridge, "NOT SCANNING: "), "the problem")
            scanner.reply = answer(200, result())
            until(lambda: not state(bridge)["problems"], "the recovery")
            assert bridge.send().startswith("250 ")
    finally:
        background.run(scanner.stop())
        background.close()


def test_a_token_without_the_permission_to_read_the_status_is_a_warning(tmp_path: Path) -> None:
    """Mail is scanned, so nothing else would be true."""
    refused = answer(403, b'{"error": "forbidden"}')
    with scanner_that(answer(200, result()), refused) as url, bridge_with(tmp_path, url) as bridge:
        until(lambda: state(bridge)["warnings"], "the warning")
        assert bridge.send().startswith("250 ")
        found = state(bridge)
        assert found["problems"] == [] and "does not report its status" in found["warnings"][0]
        assert status(bridge)[0] == 0 and get(bridge.admin, "/readyz") == (200, "ok\n")


def test_a_scanner_that_hangs_is_named(tmp_path: Path) -> None:
    with silent_server() as port, bridge_with(tmp_path, f"http://127.0.0.1:{port}") as bridge:
        until(says(bridge, "NOT SCANNING: ", "no status in time; all mail is being deferred"), "the problem")
        code, lines = status(bridge)
        assert code == 1 and lines[0].startswith(f"NOT SCANNING: scanner http://127.0.0.1:{port}: no status in time")


@pytest.mark.parametrize(
    ("policy", "words", "code"),
    [
        ({"unavailable": "relay"}, "all mail is being delivered unscanned", 200),
        pytest.param(
            {"unavailable": "quarantine"}, "all mail is being quarantined unscanned", 200, marks=pytest.mark.long
        ),
        ({"unavailable": "relay", "unreachable": "tempfail"}, "all mail is being deferred", 503),
        pytest.param({"unavailable": "reject"}, "all mail is being rejected", 503, marks=pytest.mark.long),
    ],
)
def test_the_words_follow_the_policy(tmp_path: Path, policy: dict[str, str], words: str, code: int) -> None:
    """/readyz stays at 200 while mail passes unscanned, as the operator wants; `status` fails in any case."""
    with bridge_with(tmp_path, dead_url(), policy=policy) as bridge:
        until(says(bridge, "NOT SCANNING: ", words), "the problem")
        assert get(bridge.admin, "/readyz")[0] == code and status(bridge)[0] == 1


def test_a_policy_of_a_tenant_is_part_of_the_words(tmp_path: Path) -> None:
    tenants = [{"uid": SECOND_TENANT, "recipient_domains": ["b.example"], "policy": {"unavailable": "relay"}}]
    with bridge_with(tmp_path, dead_url(), tenants=tenants) as bridge:
        words = "mail is being deferred or delivered unscanned, depending on the listener and the tenant"
        until(says(bridge, "NOT SCANNING: ", words), "the problem")
        code, lines = status(bridge)
        assert code == 1 and lines[0].endswith(f"; {words}")


def test_one_of_two_scanners_is_a_warning(tmp_path: Path) -> None:
    with scanner_that(answer(200, result())) as good:
        dead = dead_url()
        with bridge_with(tmp_path, good, more_scanners=[dead]) as bridge:
            own = f"scanner {dead}: "  # a slow machine may also warn that the good one has not reported its status yet
            until(lambda: any(warning.startswith(own) for warning in state(bridge)["warnings"]), "the warning")
            found = state(bridge)
            assert found["problems"] == [] and found["ready"]
            (warning,) = (warning for warning in found["warnings"] if warning.startswith(own))
            assert warning.endswith("; its mail goes to the other scanner hosts")


@pytest.mark.parametrize("code", [401, 403])
def test_one_of_two_scanners_that_refuses_the_token_gets_no_mail(tmp_path: Path, code: int) -> None:
    """Every other mail would be deferred; and the warning says that the other host gets its mail."""
    refused = answer(code, b'{"error": "no"}')
    with (
        scanner_that(answer(200, result())) as good,
        scanner_that(refused, refused if code == 401 else None) as bad,
        bridge_with(tmp_path, good, more_scanners=[bad]) as bridge,
    ):
        until(lambda: bridge.send() and _lasting(state(bridge)["warnings"]), "the warning")
        assert _lasting(state(bridge)["warnings"])[0].endswith("; its mail goes to the other scanner hosts")
        for _ in range(10):
            assert bridge.send().startswith("250 ")


def test_a_scanner_that_is_back_is_not_called_down(tmp_path: Path) -> None:
    """Also before the next mail, while its circuit is still half open."""
    port = free_port()
    background, scanner = Background(), FakeScanner()
    with bridge_with(tmp_path, f"http://127.0.0.1:{port}") as bridge:
        until(says(bridge, "NOT SCANNING: "), "the problem")
        background.run(scanner.start(port=port))
        try:
            until(lambda: state(bridge)["ready"] and not state(bridge)["problems"], "the recovery")
            assert bridge.send().startswith("250 ")
        finally:
            background.run(scanner.stop())
            background.close()


# The next hop


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_next_hop_that_nobody_tried_is_probed(tmp_path: Path, workers: int) -> None:
    """It was called up before the first mail failed."""
    hop = dead_hop()
    with bridge_with(tmp_path, next_hop=hop, workers=workers) as bridge:
        end = "; all mail is being deferred"
        until(says(bridge, f"NOT DELIVERING: next hop {hop} cannot be used (", end), "the problem")
        code, lines = status(bridge)
        assert code == 1 and lines[0].startswith("NOT DELIVERING: ")
        assert any(line.startswith(f"next hop       {hop}: down (") for line in lines)
        assert get(bridge.admin, "/readyz")[0] == 503
        assert f'scanbridge_next_hop_up{{next_hop="{hop}"}} 0.0' in get(bridge.admin, "/metrics")[1]


# Mail


@pytest.mark.parametrize("workers", [1, 2])
def test_mail_since_the_start_is_shown(tmp_path: Path, workers: int) -> None:
    """By `status`, `top --once` and the page at /, so that a first mail can be seen."""
    with bridge_with(tmp_path, workers=workers) as bridge:
        assert "mail           no mail since startup" in status(bridge)[1]
        for _ in range(3):
            assert bridge.send().startswith("250 ")
        found = state(bridge)["mails"]
        assert (found["total"], found["actions"]) == (3, {"relay": 3}) and found["last_at"].startswith("20")
        assert "Mail is being accepted, scanned and delivered." in get(bridge.admin, "/")[1]
        assert re.search(r"<li>next hop smtp://\S+: up, as of \d+ s ago</li>", get(bridge.admin, "/")[1])
        expected = r"3 mails since startup: 3 delivered; the last one \d+ s ago"
        shown = scanbridge("top", "--once", "--interval", "0.1", "-c", tmp_path / "bridge.yml")
        for text in ("\n".join(status(bridge)[1]), get(bridge.admin, "/")[1], shown.stdout):
            assert re.search(expected, text)


def test_deferred_mail_of_some_minutes_ago_is_said_to_be_old() -> None:
    """Where no mail has come since, the problem may be over, and the operator must be able to see that."""
    now = time.monotonic()
    (said,) = _deferred([(now - 400 + n, "next_hop", None) for n in range(3)])
    assert said == (
        "DEFERRING MAIL: 3 of 3 mails in the last 7 minutes were deferred, the last one 6 minutes ago with "
        "error=next_hop"
    )


def test_three_deferred_mails_at_night_were_called_all_mail() -> None:
    """They may be of one sender. All mail is what ten mails in a row stand for, none of which was accepted."""
    now = time.monotonic()
    nine = [(now - 100 + n, "next_hop", None) for n in range(9)]
    (said,) = _deferred(nine)
    assert said.startswith("DEFERRING MAIL: 9 of 9 mails in the last 2 minutes were deferred")
    (said,) = _deferred([*nine, (now, "next_hop", None)])
    assert said.startswith("DEFERRING ALL MAIL: 10 of 10 mails in the last 2 minutes were deferred")
    assert not list(_deferred([*nine, (now, "", None)]))


def test_three_refusals_of_the_next_hop_were_called_all_mail() -> None:
    now = time.monotonic()
    for count, said in ((9, "REJECTING MAIL: the next hop rejected 9 of 9 mails"), (10, "REJECTING ALL MAIL: ")):
        (found,) = _rejected([(now - 30, "", "554 5.7.1")] * count)
        assert found.startswith(said)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    ("reply", "logged", "expected"),
    [
        (
            b"451 4.3.0 not today",
            "action=tempfail",
            "DEFERRING MAIL: 3 of 3 mails in the last minute were deferred, the last one with error=next_hop",
        ),
        (
            b"554 5.7.1 Relay access denied",
            'reply="554 5.7.1 Relay access denied',
            "REJECTING MAIL: the next hop rejected 3 of 3 mails in the last minute, the last one with 554 5.7.1; "
            "see `reply=` in the log",
        ),
    ],
    ids=["deferred", "rejected"],
)
def test_a_next_hop_that_refuses_all_mail_is_said(
    tmp_path: Path, workers: int, reply: bytes, logged: str, expected: str
) -> None:
    """/readyz stays 200: otherwise no mail might come that shows the end of it."""
    with next_hop(DOT=reply) as hop, bridge_with(tmp_path, next_hop=hop.url, workers=workers) as bridge:
        for _ in range(3):
            assert bridge.send().startswith(reply[:4].decode())
        until(lambda: state(bridge)["problems"] == [expected], "the problem")
        assert status(bridge)[0] == 1 and get(bridge.admin, "/readyz") == (200, f"{expected}\n")
        assert all(logged in line and "rule=next_hop" in line for line in bridge.mail_lines(3))
        hop.replies.clear()
        assert bridge.send().startswith("250 ")
        until(lambda: not state(bridge)["problems"], "the end of it")
        assert status(bridge)[0] == 0


def test_mail_to_invented_addresses_is_not_a_problem_at_once(tmp_path: Path) -> None:
    """A next hop that knows its recipients rejects many a mail; only if it is all of ten, something is wrong."""
    with next_hop(DOT=b"550 5.1.1 User unknown") as hop, bridge_with(tmp_path, next_hop=hop.url) as bridge:
        for _ in range(9):
            assert bridge.send().startswith("550 ")
        bridge.mail_lines(9)
        assert state(bridge)["problems"] == []
        assert bridge.send().startswith("550 ")
        until(lambda: "rejected 10 of 10 mails" in str(state(bridge)["problems"]), "the problem")


def test_a_full_scanner_is_said(tmp_path: Path) -> None:
    red = answer(200, b'{"messageQueueStatus": "RED"}')
    with scanner_that(answer(200, result()), red) as url, bridge_with(tmp_path, url) as bridge:
        until(says(bridge, "SATURATED: the scanner reports that it is full (RED); new mail is being deferred"), "it")
        assert status(bridge)[0] == 1


def test_a_quarantine_that_cannot_be_written_is_noticed(tmp_path: Path) -> None:
    """Tried once a minute, with a file that has no name. Nobody can write to /proc, not even root."""
    assert _not_writable(tmp_path) == "" and list(tmp_path.iterdir()) == []
    assert _not_writable(Path("/proc")).startswith("/proc cannot be written to: ")


def test_a_quarantine_that_is_full_is_said(tmp_path: Path) -> None:
    """A mail for it is deferred; other mail passes."""
    with parts() as (_, scanner, hop):
        config, port, admin = write_config(tmp_path, scanner.url, hop.url, quarantine={"max_size": "1KiB"})
        bridge = start(config, port, admin)
        try:
            scanner.reply = answer(200, result("quarantine"))
            assert bridge.send(b"Subject: x\r\n\r\n" + (b"x" * 60 + b"\r\n") * 100).startswith("452 4.3.1 ")
            until(says(bridge, "NOT QUARANTINING: ", "; mail for the quarantine is being deferred"), "the problem")
            assert get(bridge.admin, "/readyz")[0] == 200 and status(bridge)[0] == 1
            scanner.reply = answer(200, result())
            assert bridge.send().startswith("250 ")
        finally:
            bridge.end()


# The page


def test_the_page_at_the_root_is_safe_and_leads_to_the_others(tmp_path: Path) -> None:
    """No scripts, nothing from elsewhere; what the scanner says is escaped."""
    evil = answer(403, b'{"error": "<script>alert(1)</script>"}')
    with scanner_that(evil) as url, bridge_with(tmp_path, url) as bridge:
        until(lambda: state(bridge)["scanner"][0]["status"] == "GREEN", "the status")
        with urllib.request.urlopen(f"http://127.0.0.1:{bridge.admin}/", timeout=60) as reply:
            text, headers = reply.read().decode(), reply.headers
        assert "Mail is being accepted, scanned and delivered." in text
        assert all(f'href="{path}"' in text for path in ("/metrics", "/healthz", "/readyz", "/status"))
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")
        bridge.send()
        until(says(bridge, "NOT SCANNING: "), "the problem")
        text = get(bridge.admin, "/")[1]
        assert "<script" not in text and "&lt;script&gt;" in text and "http-equiv" not in text


LISTS = ("bad", "gone", "good", "both")


def _lasting(lines: list[str]) -> list[str]:
    """Without that of a busy machine, on which a status may take longer than the 100 ms of this test."""
    return [line for line in lines if "no status in time" not in line]


def test_a_failed_reload_and_a_list_without_a_copy_are_warnings(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret-key\n")
    lists = {"url": dead_url(), "api_key_file": str(key)}
    with parts() as (_, scanner, hop):
        config, port, admin = write_config(tmp_path, scanner.url, hop.url, lists=lists)
        text = config.read_text().replace("- name: mx\n", "- name: mx\n  lists: {block: [bad]}\n")
        config.write_text(text)
        bridge = start(config, port, admin)
        try:
            rewrite(config, text + "unknown_key: 1\n")
            bridge.signal(1)
            until(lambda: len(_lasting(state(bridge)["warnings"])) == 2, "the warnings")
            warnings = _lasting(state(bridge)["warnings"])
            assert warnings[0].startswith("the last reload failed, and the old configuration is still in use: ")
            assert warnings[1] == "list bad has no local copy: it is not enforced"
            rewrite(config, text)
            (copy,) = state(bridge)["lists"]
            (stale,) = _list({**copy, "entries": 5, "age_s": 2061, "problem": ""}, load(config))
            assert stale == "list bad is stale: its copy is 34 minutes old"
            code, lines = status(bridge)
            assert code == 0 and _lasting(lines)[:2] == [f"WARNING: {text}" for text in warnings]
            assert len([line for line in lines if "reload" in line]) == 1, lines
        finally:
            bridge.end()


@pytest.mark.parametrize("without", ["accept", "tempfail"])
def test_a_list_of_mail_that_needs_no_scan_was_said_to_defer_mail(tmp_path: Path, without: str) -> None:
    """Without a local copy of it, mail is scanned."""
    lists = {"url": dead_url(), "api_key_file": "key", "without_copy": without}
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:1", lists=lists)
    doors = "{block: [bad], block_recipients: [gone, both], skip_scan: [good, both]}"
    config.write_text(config.read_text().replace("- name: mx\n", f"- name: mx\n  lists: {doors}\n"))
    effect = {name: next(_list({"name": name, "tenant": None, "entries": None}, load(config))) for name in LISTS}
    deferring = {name for name, text in effect.items() if text.endswith(": mail that it applies to is being deferred")}
    assert deferring == ({"bad", "gone", "both"} if without == "tempfail" else set())
    assert effect["good"] == "list good has no local copy: it is not enforced"


def test_a_history_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    """Mail flows, and is recorded when the disk is repaired."""
    with bridge_with(tmp_path) as bridge:
        history = bridge.directory / "state" / "history"
        until(history.is_dir, "the history")
        history.rename(tmp_path / "away")
        history.write_text("not a directory")
        bridge.send()
        until(lambda: _lasting(state(bridge)["warnings"]), "the warning")
        [warning] = _lasting(state(bridge)["warnings"])
        assert warning.startswith("mails are not being recorded in the history: ")
        code, lines = status(bridge)
        assert code == 0 and _lasting(lines)[0] == f"WARNING: {warning}"
        history.unlink()
        (tmp_path / "away").rename(history)
        until(lambda: not state(bridge)["warnings"], "the mail to be recorded")
        assert state(bridge)["history"] == {"problem": "", "lost": 0}


def test_mails_that_were_not_recorded_are_counted_in_the_status() -> None:
    shown: dict[str, Any] = dict.fromkeys(("version", "pid", "uptime_s", "in_processing", "max_in_processing"), 1)
    shown |= {"ready": True, "bytes_in_processing": 0, "reload": {"ok": True}}
    shown |= {"workers": [], "listeners": [], "scanner": []}
    assert "history" not in table(shown)
    lost = table({**shown, "history": {"problem": "", "lost": 1234}})
    assert "history        not recorded since startup: 1,234 mails" in lost
