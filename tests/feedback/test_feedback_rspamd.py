"""Reports with Debian's rspamd and redis: what people report changes how rspamd judges."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.reporting import ReportedMail, Reporter
from bridge.config.model import Config
from bridge.console.roles import Role
from bridge.feedback.report import ReportKind, ReportState
from bridge.runtime import yaml_file
from bridge.testing import (
    FakeScanner,
    NextHop,
    RunningBridge,
    answer,
    configuration,
    free_port,
    result,
    running_bridge,
    until,
    whole_lines,
)
from tests.console.console_kit import console_process
from tests.console.held_kit import hold
from tests.console.test_console_quarantine import wait_for_jobs
from tests.daemon.process_kit import get
from tests.digests.digest_kit import links, users
from tests.digests.test_user_pages import signed_in
from tests.feedback.rspamd_kit import MIN_LEARNS, PASSWORD, LearningRspamd, learning_rspamd, mail_of
from tests.filter.smtp_kit import send


@pytest.fixture(scope="module")
def rspamd() -> Iterator[LearningRspamd]:
    with learning_rspamd() as running:
        yield running


def page(bridge: RunningBridge, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{bridge.admin_port}/{name}", timeout=60) as answered:
        text: str = answered.read().decode()
        return text


def settings(directory: Path, rspamd: LearningRspamd) -> dict[str, Any]:
    (directory / "rspamd-password").write_text(PASSWORD + "\n")
    return {"feedback": {"rspamd": {"url": rspamd.url, "password_file": "rspamd-password"}}}


def written(directory: Path, rspamd: LearningRspamd) -> Path:
    """A configuration for commands, without a daemon."""
    data = configuration(directory, FakeScanner(), NextHop(port=1), settings(directory, rspamd))
    data["scanner"]["urls"] = ["http://127.0.0.1:1"]
    path = directory / "bridge.yml"
    path.write_text(yaml_file.dump(data))
    return path


def reporter(directory: Path, rspamd: LearningRspamd) -> Reporter:
    path = written(directory, rspamd)
    conf = yaml_file.load(path, Config)
    state = directory / "state"
    state.mkdir(exist_ok=True)
    return Reporter.open(conf, state)


@pytest.mark.long
def test_learned_mail_is_judged_otherwise(rspamd: LearningRspamd, tmp_path: Path) -> None:
    """The counts of rspamd rise by what is reported, and the next mail of the same kind becomes spam, others do not."""
    reports = reporter(tmp_path, rspamd)
    before = rspamd.judge(mail_of("spam", 10_000))
    assert not any(symbol.startswith("BAYES") for symbol in before["symbols"])
    spam, ham = rspamd.learned("spam"), rspamd.learned("ham")
    for number in range(MIN_LEARNS):
        for kind in ReportKind:
            done = reports.report_mail(kind, ReportedMail.of_file(mail_of(kind, number)), "anna")
            assert done.state is ReportState.LEARNED, done
    assert (rspamd.learned("spam") - spam, rspamd.learned("ham") - ham) == (MIN_LEARNS, MIN_LEARNS)
    until(lambda: "BAYES_SPAM" in rspamd.judge(mail_of("spam", 10_001))["symbols"], "rspamd to use its statistics")
    after, other = rspamd.judge(mail_of("spam", 10_002)), rspamd.judge(mail_of("ham", 10_003))
    assert after["score"] > before["score"] + 3 and "BAYES_SPAM" in after["symbols"]
    assert "BAYES_HAM" in other["symbols"] and other["score"] < before["score"]
    again = reports.report_mail(ReportKind.SPAM, ReportedMail.of_file(mail_of("spam", 10_004)), "anna")
    assert again.state is ReportState.KNOWN and again.is_done
    reports.close()


def test_pressing_twice_learns_once(rspamd: LearningRspamd, tmp_path: Path) -> None:
    """Once for each mail and person; another opinion replaces the first one."""
    config = written(tmp_path, rspamd)
    file = tmp_path / "mail.eml"
    file.write_bytes(mail_of("new", 1).replace(b"\r\n", b"\n"))

    def report(kind: str, *more: str) -> dict[str, Any]:
        done = CliRunner().invoke(main, ["report", kind, str(file), "-c", str(config), "--json", *more])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found

    before = rspamd.learned("spam"), rspamd.learned("ham")
    assert report("ham")["state"] == "learned" and report("ham")["state"] == "already"
    assert report("ham", "--by", "ben")["state"] == "known"
    assert (rspamd.learned("spam"), rspamd.learned("ham")) == (before[0], before[1] + 1)
    assert report("spam")["state"] == "learned" and report("spam")["state"] == "already"
    assert (rspamd.learned("spam"), rspamd.learned("ham")) == (before[0] + 1, before[1])


def test_mail_without_words_is_noted(rspamd: LearningRspamd, tmp_path: Path) -> None:
    """rspamd says why it cannot learn from it; nobody has to report it again."""
    reports = reporter(tmp_path, rspamd)
    done = reports.report_mail(ReportKind.HAM, ReportedMail.of_file(b"Subject: x\r\n\r\nhi\r\n"), "anna")
    assert done.is_done and done.state is ReportState.REFUSED and "tokens" in done.text
    reports.close()


def test_report_of_a_held_mail_is_in_history_events_and_metrics(rspamd: LearningRspamd, tmp_path: Path) -> None:
    """A mail in the quarantine is not spam: rspamd learns the mail as it was received, and everybody can see it."""
    sink = {"name": "out", "type": "file", "path": "events.jsonl"}
    with running_bridge(tmp_path, settings(tmp_path, rspamd) | {"events": [sink]}) as bridge:
        bridge.scanner.reply = answer(200, result("quarantine", verdict="spam"))
        assert send(bridge, mail_of("new", 2)).startswith("250 ")
        (kept,) = bridge.quarantined
        known = ["history", "-c", str(_saved(bridge.directory))]
        until(lambda: kept.stem in CliRunner().invoke(main, [*known, "--json"]).output, "the mail in the history")
        reports = Reporter.open(bridge.daemon.config, bridge.directory / "state")
        record = bridge.daemon.components.quarantine.read(kept.stem)
        done = reports.report(ReportKind.HAM, record, "user:anna@example.org")
        assert done.state is ReportState.LEARNED, done
        assert reports.report(ReportKind.HAM, record, "user:anna@example.org").state is ReportState.ALREADY
        events = bridge.directory / "state" / "events.jsonl"
        until(lambda: "mail.reported" in "".join(whole_lines(events)), "the event")
        (event,) = [e for e in map(json.loads, whole_lines(events)) if e["type"] == "mail.reported"]
        assert event["data"]["id"] == kept.stem and event["data"]["kind"] == "ham"
        assert event["data"]["result"] == done.state and event["data"]["by"] == "user:anna@example.org"
        line = 'scanbridge_reports{kind="ham",result="learned"} 1.0'
        until(lambda: line in page(bridge, "metrics"), "the metric")
        told = json.loads(page(bridge, "status"))["feedback"]
        assert told["learned"] == {"spam": 0, "ham": 1} and told["waiting"] == 0
        explained = CliRunner().invoke(main, ["explain", kept.stem, "-c", str(_saved(bridge.directory))])
        assert "reported as not spam by user:anna@example.org" in explained.output, explained.output
        reports.close()


def test_every_way_to_report_reaches_rspamd(rspamd: LearningRspamd, tmp_path: Path) -> None:
    """From the digest, from the page of a user and from the console; the daemon counts what was learned."""
    port = free_port()
    sections = settings(tmp_path, rspamd) | {"console": {"address": f"127.0.0.1:{port}", "undo_period": "1s"}}
    with users(tmp_path, **sections) as world, console_process(tmp_path / "bridge.yml", port) as console:
        for number, (mail, verdict) in enumerate(
            {"DIGHAM": "spam", "DIGSPAM": "phishing", "PAGEHAM": "spam", "PAGESPAM": "phishing", "CONHAM": "spam",
             "CONSPAM": "phishing"}.items(), 100
        ):  # fmt: skip
            hold(tmp_path, mail, f"{mail.lower()}@a.example", mail_of("new", number), verdict=verdict, tags=[verdict])
        digests = world.send_digests("--now")

        def learned(kind: str, press: Callable[[], object]) -> bool:
            before = rspamd.learned("ham"), rspamd.learned("spam")
            press()
            after = rspamd.learned("ham"), rspamd.learned("spam")
            return (after[0] - before[0], after[1] - before[1]) == (kind == "ham", kind == "spam")

        for kind in ReportKind:
            link = links(digests[f"dig{kind}@a.example"])[2]
            assert learned(kind, lambda link=link: world.served.browser().press(link))
            person = signed_in(world, f"page{kind}@a.example")
            path = f"/mail/PAGE{kind.upper()}/report"
            assert learned(kind, lambda person=person, path=path, kind=kind: person.post(path, {"kind": kind}))
            operator = console.signed_in(Role.RELEASER, name=f"rita-{kind}")
            action = "/quarantine/actions/report" + ("-spam" if kind == "spam" else "")

            def from_console(operator: Any = operator, action: str = action, kind: str = kind) -> None:
                assert operator.post(action, {"mail": f"CON{kind.upper()}"}).status == 303
                wait_for_jobs(operator)

            assert learned(kind, from_console)
        for kind in ReportKind:
            line = f'scanbridge_reports{{kind="{kind}",result="learned"}} 3.0'
            until(lambda line=line: line in get(world.bridge.admin, "/metrics")[1], "the metric")


def _saved(directory: Path) -> Path:
    """The configuration of a bridge that runs in this process, for a command."""
    path = directory / "command.yml"
    path.write_text(f"state_directory: {directory / 'state'}\n" + _MINIMAL)
    return path


_MINIMAL = """\
scanner: {urls: ["http://127.0.0.1:1"], token_file: token}
listeners: [{name: test, address: "127.0.0.1:1"}]
relay: {next_hop: "127.0.0.1:2"}
"""
