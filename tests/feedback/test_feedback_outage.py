"""Reports while rspamd is away, slow or wrong: none is lost, and the person is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.reporting import ReportedMail, Reporter
from bridge.config.model import Config
from bridge.daemon.feedback import Feedback, _learned
from bridge.feedback import store as report_store
from bridge.feedback.learners import Learners
from bridge.feedback.report import LearnableMail, ReportKind, ReportState
from bridge.feedback.rspamd_learning import Learning, LearningRefused, LearningSettings, LearningUnavailable
from bridge.feedback.store import FILE, ReportStore, Waiting
from bridge.mail.message import Message
from bridge.observe.metrics import Metrics
from bridge.runtime import yaml_file
from bridge.runtime.database import Database
from bridge.runtime.endpoints import Endpoint
from bridge.testing import RunningBridge, answer, free_port, result, running_bridge, until
from tests.dripping_server import dripping
from tests.filter.smtp_kit import send
from tests.postgresql import fresh_database
from tests.recipients.recipients_kit import next_hop

MAIL = b"Subject: hello\r\n\r\nhello\r\n"


class Controller:
    """A server in place of rspamd's controller; `status` and `body` are its answer. It fails on mail with `poison`."""

    def __init__(self, port: int = 0) -> None:
        self.asked: list[tuple[str, bytes, str | None]] = []
        self.status, self.body = 200, b'{"success": true}'
        self.poison = b"\0"
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                own.asked.append((self.path, content, self.headers.get("Password")))
                self.send_response(500 if own.poison in content else own.status)
                self.send_header("Content-Length", str(len(own.body)))
                if own.status == 302:
                    self.send_header("Location", "/learnham")
                self.end_headers()
                self.wfile.write(own.body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def controller(port: int = 0) -> Iterator[Controller]:
    running = Controller(port)
    try:
        yield running
    finally:
        running.stop()


def configured(directory: Path, url: str | None, **feedback: Any) -> Config:
    (directory / "token").write_text("x" * 64)
    (directory / "password").write_text("open-sesame\n")
    if url is not None:
        feedback["rspamd"] = {"url": url, "password_file": "password", "timeout": "5s"}
    data = {
        "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "token"},
        "listeners": [{"name": "test", "address": "127.0.0.1:1"}],
        "relay": {"next_hop": feedback.pop("next_hop", "127.0.0.1:2")},
        "state_directory": str(directory / "state"),
        "feedback": feedback,
    }
    (directory / "state").mkdir(exist_ok=True)
    return yaml_file.load(directory / "bridge.yml", Config, yaml_file.dump(data))


@contextmanager
def reporter(conf: Config, directory: Path) -> Iterator[Reporter]:
    opened = Reporter.open(conf, directory / "state")
    try:
        yield opened
    finally:
        opened.close()


def test_report_waits_for_rspamd_and_is_learned_later(tmp_path: Path) -> None:
    """rspamd is down: the person reads so, the mail may be deleted, and the daemon has it learned later."""
    port = free_port()
    (tmp_path / "password").write_text("open-sesame\n")
    rspamd = {"url": f"http://127.0.0.1:{port}", "password_file": "password", "retry_interval": "1s"}
    with running_bridge(tmp_path, {"feedback": {"rspamd": rspamd}}) as bridge:
        bridge.scanner.reply = answer(200, result("quarantine", verdict="spam"))
        assert send(bridge, MAIL).startswith("250 ")
        (kept,) = bridge.quarantined
        with reporter(bridge.daemon.config, tmp_path) as reports:
            held = bridge.daemon.components.quarantine
            done = reports.report(ReportKind.HAM, held.read(kept.stem), "anna")
            assert done.is_done and done.state is ReportState.WAITING and "rspamd will learn from it later" in done.text
            assert reports.report(ReportKind.HAM, held.read(kept.stem), "anna").state is ReportState.ALREADY
            held.remove(kept.stem)
        told = lambda: bridge.background.run(_state(bridge))  # noqa: E731
        until(lambda: told()["waiting"] == 1 and "cannot be reached" in told()["problem"], "the report to wait")
        with controller(port) as there:
            until(lambda: there.asked, "the report to be learned")
            until(lambda: told()["waiting"] == 0 and told()["learned"]["ham"] == 1, "the count")
            assert there.asked == [("/learnham", MAIL, "open-sesame")] and told()["problem"] == ""


async def _state(bridge: RunningBridge) -> dict[str, Any]:
    found: dict[str, Any] = bridge.daemon.status.state()["feedback"]
    return found


@pytest.mark.parametrize(
    "status, body", [(500, b""), (503, b"x" * 100), (401, b"{}"), (302, b""), (200, b"x" * 70_000)]
)
def test_trouble_of_rspamd_keeps_the_report(tmp_path: Path, status: int, body: bytes) -> None:
    """An error, a wrong password, a redirect, an endless answer: the mail waits. The password follows no redirect."""
    with controller() as rspamd, reporter(configured(tmp_path, rspamd.url), tmp_path) as reports:
        rspamd.status, rspamd.body = status, body
        done = reports.report_mail(ReportKind.SPAM, ReportedMail.of_file(MAIL), "anna")
        assert done.state is ReportState.WAITING, done
        assert [path for path, _, _ in rspamd.asked] == ["/learnspam"]
        assert "open-sesame" not in done.text


@pytest.mark.parametrize(
    "status, body, known",
    [
        (208, b'{"error":"<x> has been already learned as spam, ignore it"}', True),
        (204, b"", False),
        (400, b'{"error":"Empty body is not permitted"}', False),
        (200, b'{"error":"all learn conditions denied learning spam in default classifier"}', True),
        (200, b"[]", False),
        (200, b"\xff", False),
    ],
)
def test_answers_about_one_mail(status: int, body: bytes, known: bool) -> None:
    """rspamd knows the mail, or cannot learn from it: asking again would not help."""
    with controller() as rspamd:
        rspamd.status, rspamd.body = status, body
        learning = Learning(LearningSettings(rspamd.url))
        if known:
            assert learning.learn(ReportKind.SPAM, Message.of([MAIL])) is False
        else:
            with pytest.raises(LearningRefused):
                learning.learn(ReportKind.SPAM, Message.of([MAIL]))


def test_large_mail_is_not_sent() -> None:
    with controller() as rspamd:
        learning = Learning(LearningSettings(rspamd.url, max_size=10))
        with pytest.raises(LearningRefused):
            learning.learn(ReportKind.SPAM, Message.of([MAIL]))
        assert not rspamd.asked


def test_rspamd_is_not_there() -> None:
    learning = Learning(LearningSettings(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(LearningUnavailable):
        learning.learn(ReportKind.SPAM, Message.of([MAIL]))


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"])
def test_an_answer_of_a_byte_at_a_time_was_read_for_days(start: bytes) -> None:
    """The timeout began again with each byte; meanwhile, nothing else was learned, and few could report mail."""
    found: list[str] = []

    def learn(address: Endpoint) -> None:
        with pytest.raises(LearningUnavailable) as raised:
            Learning(LearningSettings(f"http://{address}", whole_s=0.5)).learn(ReportKind.SPAM, Message.of([MAIL]))
        found.append(str(raised.value))

    with dripping(start) as address:
        asking = threading.Thread(target=learn, args=(address,))
        asking.start()
        asking.join(20)
        assert found == ["rspamd: no whole answer within 0.5 s"]
    asking.join()


def test_mail_that_is_gone_is_not_reported(tmp_path: Path) -> None:
    """The person reads why, and nothing is counted."""
    with running_bridge(tmp_path) as bridge:
        bridge.scanner.reply = answer(200, result("quarantine", verdict="spam"))
        assert send(bridge, MAIL).startswith("250 ")
        (kept,) = bridge.quarantined
        held = bridge.daemon.components.quarantine
        mail = held.read(kept.stem)
        held.remove(kept.stem)
        with reporter(bridge.daemon.config, tmp_path) as reports:
            done = reports.report(ReportKind.HAM, mail, "anna")
        assert not done.is_done and "no longer in the quarantine" in done.text


def test_report_is_mailed_and_may_be_repeated_if_that_failed(tmp_path: Path) -> None:
    """The address gets the mail as an attachment, once; while the next hop refuses, the person may try again."""
    with controller() as rspamd, next_hop() as hop:
        conf = configured(tmp_path, rspamd.url, report_to="abuse@example.org", next_hop=hop.url)
        with reporter(conf, tmp_path) as reports:
            hop.replies[b"."] = b"451 4.3.0 Later"
            mail = ReportedMail.of_file(MAIL)
            done = reports.report_mail(ReportKind.SPAM, mail, "anna")
            assert not done.is_done and done.state is ReportState.FAILED and "451" in done.text
            hop.replies.clear()
            done = reports.report_mail(ReportKind.SPAM, mail, "anna")
            assert done.is_done and "sent to abuse@example.org" in done.text
            assert reports.report_mail(ReportKind.SPAM, mail, "anna").state is ReportState.ALREADY
        (sent,) = hop.mails
        assert sent.recipients == [b"abuse@example.org"] and sent.fields("Subject")[0].startswith("Spam: sha256:")
        assert sent.fields("Auto-Submitted") == ["auto-generated"]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database.file(tmp_path / "feedback.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))


def test_store_keeps_one_report_of_each_person(place: Database) -> None:
    """On SQLite and PostgreSQL: claims, counts, waiting mail in order, and the retention."""
    store = ReportStore(place, retention_s=86400)
    assert store.totals().counts == {}
    assert store.begin("M1", "anna", ReportKind.SPAM) and not store.begin("M1", "anna", ReportKind.SPAM)
    store.wait("M1", "anna", ReportKind.SPAM, b"one")
    assert not store.begin("M1", "anna", ReportKind.SPAM)
    assert store.begin("M2", "anna", ReportKind.HAM)
    store.wait("M2", "anna", ReportKind.HAM, b"two")
    found = store.next_waiting()
    assert found is not None and (found[0].mail, found[0].content, found[0].kind) == ("M1", b"one", ReportKind.SPAM)
    following = store.next_waiting(found[1])
    assert following is not None and following[0].mail == "M2" and store.next_waiting(following[1]) is None
    assert store.totals().waiting == 2
    store.finish("M1", "anna", ReportKind.SPAM, ReportState.LEARNED)
    assert store.begin("M2", "anna", ReportKind.SPAM)  # another opinion
    store.finish("M2", "anna", ReportKind.SPAM, ReportState.LEARNED)
    totals = store.totals()
    assert totals.counts == {("spam", "learned"): 2} and totals.waiting == 0
    assert store.begin("M3", "ben", ReportKind.HAM)
    store.forget("M3", "ben", ReportKind.HAM)
    assert store.begin("M3", "ben", ReportKind.HAM)
    store.close()


def test_an_interrupted_report_could_not_be_made_again_if_its_clock_was_ahead(
    place: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the time that the clock had shown, the person was told that the report was made before."""
    store, now = ReportStore(place, retention_s=86400), time.time()
    monkeypatch.setattr("bridge.feedback.store.time.time", lambda: now + 365 * 86400)
    assert store.begin("M1", "anna", ReportKind.SPAM)
    monkeypatch.undo()
    assert store.begin("M1", "anna", ReportKind.SPAM) and not store.begin("M1", "anna", ReportKind.SPAM)
    store.close()


def test_a_correction_was_finished_with_the_result_of_what_it_corrected(place: Database) -> None:
    """While `spam` is being learned, the person says `ham`: that still waits, and is not marked as learned."""
    store = ReportStore(place, retention_s=86400)
    for kind in (ReportKind.SPAM, ReportKind.HAM):
        assert store.begin("M1", "anna", kind)
        store.wait("M1", "anna", kind, b"one")
    store.finish("M1", "anna", ReportKind.SPAM, ReportState.LEARNED)
    store.forget("M1", "anna", ReportKind.SPAM)
    store.wait("M1", "anna", ReportKind.SPAM, b"other")
    found = store.next_waiting()
    assert found is not None and (found[0].kind, found[0].content) == (ReportKind.HAM, b"one")
    assert store.totals().counts == {}
    store.close()


def test_two_presses_at_once_make_one_report(place: Database) -> None:
    """However many processes and threads try, one of them makes the report."""
    stores = [ReportStore(place, 86400, wait_s=60.0) for _ in range(8)]
    begun: list[bool] = []
    barrier = threading.Barrier(len(stores))

    def press(store: ReportStore) -> None:
        barrier.wait(30)
        begun.append(store.begin("M", "anna", ReportKind.SPAM))

    threads = [threading.Thread(target=press, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(begun) == [False] * 7 + [True]
    for store in stores:
        store.close()


def test_waiting_mail_is_limited(tmp_path: Path) -> None:
    """A full queue tells the person to come back, and does not grow."""
    store = ReportStore(Database.file(tmp_path / "f.sqlite"), 86400)
    large = bytes(report_store.MAX_WAITING_BYTES // 2 + 1)
    assert store.begin("M1", "anna", ReportKind.SPAM)
    store.wait("M1", "anna", ReportKind.SPAM, large)
    assert store.begin("M2", "anna", ReportKind.SPAM)
    with pytest.raises(report_store.TooManyWaiting):
        store.wait("M2", "anna", ReportKind.SPAM, large)
    assert store.totals().waiting == 1
    store.close()


def test_report_needs_no_rspamd(tmp_path: Path) -> None:
    """Without rspamd and address, a report is noted and counted."""
    with reporter(configured(tmp_path, None), tmp_path) as reports:
        done = reports.report_mail(ReportKind.HAM, ReportedMail.of_file(MAIL), "anna")
        assert done.is_done and done.state is ReportState.NOTED
    log = (tmp_path / "state" / "quarantine" / "actions.log").read_text()
    assert '"action": "reported as not spam"' in log and '"by": "anna"' in log


class FullDisk(Learners):
    """Stands for learners to which a mail cannot be sent, because it cannot be written to the disk first."""

    def learn(self, kind: ReportKind, mail: LearnableMail) -> tuple[ReportState, str]:
        raise OSError(28, "No space left on device")


def test_a_full_disk_kept_all_other_reports_from_being_learned() -> None:
    """It is a reason to try this mail again later, and in the end to give it up."""
    waiting = Waiting("id", "jane", ReportKind.SPAM, MAIL)
    with pytest.raises(LearningUnavailable, match="No space left"):
        _learned(FullDisk(), waiting, is_last=False)
    state, text = _learned(FullDisk(), waiting, is_last=True)
    assert state is ReportState.REFUSED and "No space left" in text


def test_three_mails_that_could_not_be_learned_kept_all_other_reports_from_being_learned(tmp_path: Path) -> None:
    """Each turn began with them, and ended after the third, until `feedback.retention` had passed."""
    with controller() as rspamd, closing(ReportStore(Database.file(tmp_path / FILE), 86400)) as store:
        rspamd.poison = b"poison"
        for number in range(8):
            store.begin(f"M{number}", "anna", ReportKind.SPAM)
            store.wait(f"M{number}", "anna", ReportKind.SPAM, MAIL if number in (3, 7) else b"poison\r\n")
        conf, feedback = configured(tmp_path, rspamd.url), Feedback(tmp_path, Metrics(), lambda: True)
        learned = []
        for _ in range(4):  # the last turn begins with the oldest again
            feedback._learn_waiting(conf, tmp_path, store)
            learned.append(store.totals().counts.get((ReportKind.SPAM, ReportState.LEARNED), 0))
            assert feedback.problem
        assert learned == [0, 1, 2, 2] and store.totals().waiting == 6
        rspamd.poison = b"\0"
        while store.totals().waiting:
            feedback._learn_waiting(conf, tmp_path, store)
        assert not feedback.problem
