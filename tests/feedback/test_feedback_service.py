"""Reports that the included scanning service learns, over HTTP, from the bridge's side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bridge.cli.reporting import ReportedMail, Reporter
from bridge.config.model import Config
from bridge.daemon import feedback_wiring
from bridge.errors import ConfigError
from bridge.feedback.learners import Learners
from bridge.feedback.report import LearnableMail, ReportKind, ReportState
from bridge.feedback.rspamd_learning import Learning, LearningSettings, LearningUnavailable
from bridge.mail.message import Message
from bridge.runtime import yaml_file
from bridge.service.learning.store import VoteStore
from bridge.service.learning.votes import Vote
from bridge.service.settings import ServiceConfig
from bridge.service.store import Store
from bridge.testing import free_port
from tests.service.service_kit import CONFIG, TOKEN, service

TENANT = "123e4567-e89b-12d3-a456-426614174000"
MAIL = b"From: news@shop.example\r\nTo: ann@example.net\r\nSubject: hello\r\n\r\nhello\r\n"
SENDER = "shop.example 192.0.2.0/24"


def configured(directory: Path, port: int, **scanner: object) -> Config:
    (directory / "token").write_text(TOKEN)
    (directory / "state").mkdir(exist_ok=True)
    data = {
        "scanner": {"urls": [f"http://127.0.0.1:{port}"], "token_file": "token", **scanner},
        "listeners": [{"name": "test", "address": "127.0.0.1:1"}],
        "relay": {"next_hop": "127.0.0.1:2"},
        "state_directory": str(directory / "state"),
        "feedback": {"scanner": True},
    }
    return yaml_file.load(directory / "bridge.yml", Config, yaml_file.dump(data))


@contextmanager
def votes_of(config: ServiceConfig) -> Iterator[VoteStore]:
    with closing(Store(config.database_url)) as store:
        store.open()
        yield VoteStore(store)


def votes_in(config: ServiceConfig, scope: str) -> list[Vote]:
    with votes_of(config) as votes:
        return votes.votes(scope)


def quarantined(tenant: str = "", ggrid: str = "") -> ReportedMail:
    recipients = ("ann@example.net",)
    return ReportedMail(
        "id1", Message.of([MAIL]), "id1", "b@shop.example", recipients, "", tenant, ggrid, client="192.0.2.9"
    )


def test_report_reaches_the_service_with_sender_and_tenant(tmp_path: Path) -> None:
    """The vote is about the sender as the client's network proves him, in the tenant's own layer, and counts once."""
    with service(tmp_path) as running:
        conf = configured(tmp_path, running.port)
        with closing(Reporter.open(conf, tmp_path / "state")) as reports:
            ggrid = running.submit(MAIL, tenantUid=TENANT).json["ggrid"]
            done = reports.report_mail(ReportKind.HAM, quarantined(TENANT, ggrid), "user ann@example.net")
            assert (done.state, done.text) == (
                ReportState.LEARNED,
                "reported as not spam: learned by the scanning service",
            )
            file = reports.report_mail(ReportKind.SPAM, ReportedMail.of_file(MAIL), "bob")
            assert file.state is ReportState.LEARNED
        (vote,) = votes_in(running.config, TENANT)
        assert (vote.kind, vote.sender) == ("ham", SENDER)
        (unproved,) = votes_in(running.config, "")
        assert (unproved.kind, unproved.sender, unproved.origin) == ("spam", "", "")


def test_report_waits_for_the_service_and_keeps_the_envelope(tmp_path: Path) -> None:
    """While the service is away, the mail waits with everything that the vote needs."""
    port = free_port()
    conf = configured(tmp_path, port)
    with service(tmp_path) as running:
        ggrid = running.submit(MAIL).json["ggrid"]
    with closing(Reporter.open(conf, tmp_path / "state")) as reports:
        done = reports.report_mail(ReportKind.HAM, quarantined(ggrid=ggrid), "ann")
        assert done.state is ReportState.WAITING and "the scanning service will learn from it later" in done.text
    with closing(feedback_wiring.report_store(conf, tmp_path / "state")) as store:
        waiting, _ = store.next_waiting()
    with service(tmp_path, CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}")) as running:
        learners = feedback_wiring.learners(conf)
        mail = LearnableMail.waiting(Message.of([waiting.content]), waiting.person, waiting.about)
        assert learners.learn(waiting.kind, mail)[0] is ReportState.LEARNED
        assert learners.learn(waiting.kind, mail)[0] is ReportState.KNOWN
        (vote,) = votes_in(running.config, "")
        assert vote.sender == SENDER


def test_service_that_cannot_learn_refuses_or_keeps_the_report(tmp_path: Path) -> None:
    """A token without the permission is the operator's mistake, so the report waits; nothing is lost."""
    text = CONFIG.replace(f"token: {TOKEN}", f"token: {TOKEN}, permissions: [scan]")
    with service(tmp_path, text) as running:
        with closing(Reporter.open(configured(tmp_path, running.port), tmp_path / "state")) as reports:
            done = reports.report_mail(ReportKind.HAM, quarantined(), "ann")
        assert done.state is ReportState.WAITING and "`feedback`" in done.text and TOKEN not in done.text


def test_only_the_included_service_learns(tmp_path: Path) -> None:
    """Another dialect has no such interface, and the configuration says so."""
    with pytest.raises(ConfigError, match=r"feedback\.scanner"):
        feedback_wiring.learners(configured(tmp_path, 1, dialect="mta-hooks"))


def test_a_service_found_by_srv_records_is_refused(tmp_path: Path) -> None:
    """Such a name has no address, so reports would wait forever."""
    found = {"urls": ["https://_scan._tcp.example"], "discovery": {"records": "srv"}}
    with pytest.raises(ConfigError, match=r"feedback\.scanner.*SRV"):
        feedback_wiring.learners(configured(tmp_path, 1, **found))


def test_a_service_found_by_other_name_servers_is_refused(tmp_path: Path) -> None:
    """The system's resolver does not know such a name, so reports would wait forever."""
    found = {"urls": ["https://scan.example"], "discovery": {"records": "addresses", "nameservers": ["127.0.0.1:8600"]}}
    with pytest.raises(ConfigError, match=r"feedback\.scanner.*nameservers"):
        feedback_wiring.learners(configured(tmp_path, 1, **found))


def test_the_service_learns_while_rspamd_is_away(tmp_path: Path) -> None:
    """It was not even asked, because rspamd comes first."""
    rspamd = Learning(LearningSettings(f"http://127.0.0.1:{free_port()}", timeout_s=5.0))
    with service(tmp_path) as running:
        conf = configured(tmp_path, running.port)
        own = feedback_wiring._scanner(conf)
        with pytest.raises(LearningUnavailable):
            Learners(rspamd, own).learn(
                ReportKind.SPAM,
                LearnableMail(Message.of([MAIL]), "ann", "b@shop.example", ("ann@example.net",), "192.0.2.9"),
            )
        assert [vote.kind for vote in votes_in(running.config, "")] == ["spam"]
