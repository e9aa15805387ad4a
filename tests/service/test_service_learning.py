"""What the service learns from people's reports, and what nobody can make it learn."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest

from bridge.mime.structure import Bounds
from bridge.service.analysis.author_domains import author_domains
from bridge.service.analysis.dmarc import worst
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.detection.model import model_at
from bridge.service.learning.follow import Learned
from bridge.service.learning.score_shift import MAX_OF_SENDER, MAX_OF_SIGNALS, MAX_SHIFT, combined, layer_of
from bridge.service.learning.store import KEPT_S, MAX_OF_REPORTER, TooManyScopes, VoteStore
from bridge.service.learning.votes import BadVote, Vote, digest, digest_of_person, origin_of, senders_of
from bridge.service.settings import ServiceConfig
from bridge.service.store import Store
from bridge.testing import eventually
from tests.service.service_kit import (
    BOUNDARY,
    CONFIG,
    SOON_S,
    TOKEN,
    Service,
    command,
    multipart,
    service,
    service_processes,
    until,
)

TENANT = "123e4567-e89b-12d3-a456-426614174000"
WEIGHTS = model_at("").weights
SIGNAL = max(WEIGHTS, key=lambda name: WEIGHTS[name])
SENDER = "shop.example 192.0.2.0/24"
CLIENT = "192.0.2.7"
NEAR_THE_THRESHOLD = """\
From: "PayPal" <{author}>
To: ann@example.net
Subject: News of this week
Date: Mon, 16 Nov 2026 09:00:00 +0000
Message-ID: <{number}@mail.qtbmpxeikvoxw.top>
Content-Type: text/html; charset=utf-8

<p>Dear customer, see what is new, please verify your account</p>
<a href="https://shop.example/{number}">Log in</a>
"""


def vote(number: int, kind: str = "ham", reporter: str = "ann", **more) -> Vote:
    given = {"sender": SENDER, "origin": "192.0.2.0/24", "signals": (SIGNAL,), "at": time.time() - 1000 + number}
    values = {**given, **more}
    return Vote(digest(b"%d" % number), digest(reporter.encode()), kind, **values)


def shift(votes: list[Vote], senders=(SENDER,), signals=(SIGNAL,), *, is_dangerous: bool = False) -> float:
    return combined([layer_of(votes)], senders, signals, WEIGHTS, is_dangerous=is_dangerous)


# The layer


def test_one_person_pressing_a_hundred_times_counts_once_and_for_that_sender_only() -> None:
    """A sender who makes a user press "not spam" a hundred times gains nothing for other senders."""
    hundred = [vote(number) for number in range(100)]
    assert shift(hundred) == shift(hundred[:1]) < 0
    assert shift(hundred, senders=["other.example 192.0.2.0/24"]) == 0
    assert shift(hundred, senders=["shop.example 198.51.100.0/24"]) == 0, "the same name from another network"
    assert shift(hundred, senders=[]) == 0, "nobody proves who sent this mail"


def test_one_person_with_a_hundred_senders_changes_no_signal() -> None:
    """A single person, however many mails he gets from however many networks, does not change it for others."""
    votes = [vote(number, origin=f"10.{number}.0.0/24", sender="") for number in range(100)]
    assert shift(votes, senders=[]) == 0


def test_many_people_and_one_network_change_no_signal() -> None:
    """A campaign from one network counts once, no matter how many people fall for it or how many names it uses."""
    votes = [vote(number, reporter=f"p{number}", sender=f"d{number}.example x") for number in range(100)]
    unknown = [replace(one, origin="", sender="") for one in votes]
    assert shift(votes, senders=[]) == shift(unknown, senders=[]) == 0


def test_several_people_and_networks_change_a_signal_within_bounds() -> None:
    """What honest people say about mail from everywhere counts, but a weight changes by half at most."""
    votes = [vote(n, reporter=f"p{n}", origin=f"10.{n}.0.0/24", sender="") for n in range(3)]
    assert shift(votes, senders=[]) == pytest.approx(-0.3)
    assert shift([replace(one, kind="spam") for one in votes], senders=[]) == pytest.approx(0.3)
    many = [vote(n, reporter=f"p{n}", origin=f"10.{n}.0.0/24", sender="") for n in range(200)]
    assert shift(many, senders=[]) == pytest.approx(-min(WEIGHTS[SIGNAL] / 2, MAX_OF_SIGNALS))
    every = [replace(one, signals=tuple(WEIGHTS)) for one in many]
    assert shift(every, senders=[], signals=tuple(WEIGHTS)) == -MAX_OF_SIGNALS


def test_a_person_counts_for_few_networks() -> None:
    """An accomplice adds little: the first person's hundred networks count like three."""
    votes = [vote(n, origin=f"10.{n}.0.0/24", sender="") for n in range(100)]
    votes.append(vote(200, reporter="bob", origin="10.200.0.0/24", sender=""))
    assert shift(votes, senders=[]) == pytest.approx(-0.4)


def test_a_sender_is_bounded_and_a_dangerous_mail_never_gets_better() -> None:
    """The whole company may like a sender: malware in his name, or an unreadable mail, is judged as before."""
    liked = [vote(n, reporter=f"p{n}", signals=()) for n in range(50)]
    assert shift(liked) == -MAX_OF_SENDER
    assert shift(liked, is_dangerous=True) == 0
    hated = [replace(one, kind="spam") for one in liked]
    assert shift(hated) == shift(hated, is_dangerous=True) == MAX_OF_SENDER
    both = [layer_of(liked), layer_of(liked)]
    assert combined(both, [SENDER], [], WEIGHTS, is_dangerous=False) == -MAX_SHIFT


def test_the_newest_word_of_a_person_counts() -> None:
    """Somebody who changes his mind about a sender is not heard twice."""
    assert shift([vote(1), vote(2, "spam")]) > 0
    assert shift([vote(1, "spam"), vote(2)]) < 0


@pytest.mark.parametrize(
    ("authors", "client", "tags", "expected"),
    [
        (["a@shop.example"], CLIENT, (), ["shop.example 192.0.2.0/24"]),
        (["a@shop.example"], CLIENT, ("auth:dmarc-pass",), ["shop.example dmarc", "shop.example 192.0.2.0/24"]),
        (["ann@gmail.com"], CLIENT, (), ["ann@gmail.com 192.0.2.0/24"]),  # else all its customers would gain
        (["a@shop.example"], "2001:db8:1:2::3", (), ["shop.example 2001:db8:1::/48"]),
        (["a@shop.example"], None, (), []),
        (["a@shop.example"], "unknown", (), []),
        (["a@shop.example"], CLIENT, ("header:several-from",), []),
        (["a@shop.example", "a@shop.example"], None, ("auth:dmarc-pass",), ["shop.example dmarc"]),
        (["a@shop.example", "b@evil.example"], CLIENT, ("auth:dmarc-pass",), []),
        (["a@shop.example"], CLIENT, ("auth:dmarc-reject",), []),  # another customer of the same provider
        (["a@shop.example"], CLIENT, ("auth:dmarc-temperror",), []),
        (["a@shop.example"], CLIENT, ("auth:spf-softfail",), []),
        ([], CLIENT, (), []),
    ],
)
def test_who_a_sender_is(authors, client, tags, expected) -> None:
    """A name counts only with a proof: DMARC, or the network of the client."""
    assert senders_of(authors, client, tags) == expected
    assert origin_of("not an address") == ""


def test_an_author_whose_domain_cannot_be_spelled_borrowed_the_proof_of_another() -> None:
    """Two From fields, DMARC passed for the second: the mail was learned as mail of the first."""
    content = "From: Boss <ceo@partner.example\u00a0>\r\nFrom: x@attacker.example\r\n\r\nx\r\n".encode()
    found = inspect(content, Limits())
    assert len(found.authors) == 2
    assert senders_of(found.authors, CLIENT, found.tags | {"auth:dmarc-pass"}) == []
    assert author_domains(content, Bounds()).names == {"partner.example", "attacker.example"}
    assert worst(["pass", ""]) == "" and worst(["pass", "pass"]) == "pass" and worst(["pass", "none", ""]) == "none"


# The database


@pytest.fixture
def store(tmp_path, database):
    config = ServiceConfig(database=database.replace("lists.sqlite", str(tmp_path / "votes.sqlite")))
    store = Store(config.database_url)
    store.open()
    yield store
    store.close()


@pytest.fixture
def votes(store):
    return VoteStore(store)


def test_one_vote_for_each_mail_and_person(votes) -> None:
    """The same word twice changes nothing; the opposite replaces it; scopes know nothing of each other."""
    assert votes.add("", vote(1)) and not votes.add("", vote(1))
    assert votes.add("", vote(1, "spam"))
    assert [one.kind for one in votes.votes("")] == ["spam"]
    assert votes.add("", vote(1, reporter="bob"))
    assert votes.votes(TENANT) == []
    before = votes.versions()
    assert votes.reset("") == 2 and votes.votes("") == []
    assert votes.versions()[""] > before[""], "other nodes must notice"


def test_nobody_pushes_out_what_others_said(votes) -> None:
    """A person's oldest votes make room for his newest, never somebody else's."""
    votes.add("", vote(0, reporter="bob"))
    for number in range(MAX_OF_REPORTER + 5):
        votes.add("", vote(number + 1))
    found = votes.votes("")
    assert len(found) == MAX_OF_REPORTER + 1
    assert found[0].reporter == digest(b"bob")


def test_scopes_of_tenants_that_are_gone_are_deleted(votes) -> None:
    """Their rows, and the layers in the memory of every node, stayed forever."""
    old = time.time() - KEPT_S - 10
    votes.add("", vote(1))
    votes.replace(TENANT, [vote(1, at=old), vote(2, at=old)])
    follower = Learned(votes)
    asyncio.run(follower._refresh())
    before = votes.versions()[TENANT]
    assert votes.expire() == 1 and votes.expire() == 0
    assert set(votes.versions()) == {""} and votes.votes("")
    asyncio.run(follower._refresh())
    assert set(follower._layers) == {""} and follower.votes == 1
    votes.add(TENANT, vote(3))
    assert votes.versions()[TENANT] > before, "a node that knows the old version must notice"
    asyncio.run(follower._refresh())
    assert follower.votes == 2


async def test_a_vote_read_by_a_call_that_took_too_long_was_forgotten(store) -> None:
    """The call that nobody waited for any more noted that its votes were known, until the next vote."""
    calls, go_on = [], threading.Event()

    class Slow(VoteStore):
        def versions(self) -> dict[str, int]:
            calls.append(None)
            if len(calls) == 1:
                go_on.wait(SOON_S)
            return super().versions()

    votes = Slow(store)
    votes.add("", vote(1))
    follower = Learned(votes)
    too_long = asyncio.create_task(asyncio.to_thread(follower._current))
    await eventually(lambda: calls, "the slow call")
    await follower._refresh()
    votes.add("", vote(2))
    go_on.set()
    await too_long
    await follower._refresh()
    assert follower.votes == 2


def test_imported_votes_of_the_future_pushed_out_all_new_ones(store) -> None:
    """They never expired, either. They count as if they were made now."""
    votes = VoteStore(store, max_votes=3)
    votes.replace("", [vote(number, at=9e10) for number in range(3)])
    assert all(one.at <= time.time() for one in votes.votes(""))
    assert votes.add("", vote(7, at=time.time() + 1))
    assert digest(b"7") in [one.mail for one in votes.votes("")] or len(votes.votes("")) == 3


def test_the_number_of_scopes_is_limited(store) -> None:
    """Whoever may report can invent tenants."""
    votes = VoteStore(store, max_scopes=2)
    assert votes.add("", vote(1)) and votes.add(TENANT, vote(1))
    with pytest.raises(TooManyScopes):
        votes.add(TENANT.replace("1", "2"), vote(1))
    assert votes.add(TENANT, vote(2)) and votes.reset(TENANT) == 2 and votes.expire() == 1
    assert votes.add(TENANT.replace("1", "2"), vote(1))


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "null", '{"mail": 1}', vote(1).to_json().replace("ham", "maybe"), '{"mail": "x"']
)
def test_a_wrong_line_is_no_vote(line) -> None:
    """A damaged export is refused as a whole."""
    with pytest.raises(BadVote):
        Vote.from_json(line)


@pytest.mark.parametrize(
    "change", [{"at": 10**400}, {"sender": "\ud800"}, {"sender": "a\0b"}, {"signals": ["\x1b[2J"]}]
)
def test_a_hostile_line_is_no_vote(change) -> None:
    """It ended the import with a traceback, or brought text that no database takes and no terminal should show."""
    with pytest.raises(BadVote):
        Vote.from_json(json.dumps(json.loads(vote(1).to_json()) | change))


@pytest.mark.parametrize(
    "client", ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1"]
)
def test_our_own_gateway_proves_no_sender(client) -> None:
    """It brings everybody's mail: who forged a sender that people like would have had his votes."""
    assert origin_of(client) == ""
    assert senders_of(["a@bank.example"], client, []) == []


def test_a_sender_that_cannot_be_printed_gets_no_votes() -> None:
    """PostgreSQL takes no NUL: the report would have been retried forever, and would have held up all others."""
    assert senders_of(["a\0b@gmail.com"], CLIENT, []) == senders_of(["\x1b[2Ja@gmail.com"], CLIENT, []) == []


@pytest.mark.parametrize("spelling", ["ANN@example.org", "ann@EXAMPLE.org.", '"ann"@example.org'])
def test_one_person_is_one_in_every_spelling(spelling) -> None:
    """Mail to three spellings of an address made one person count three times, enough for the most a sender gets."""
    assert digest_of_person(spelling) == digest_of_person("ann@example.org") != digest_of_person("bob@example.org")


# The service


def mail(number: int = 1, author: str = "service@shop.example") -> bytes:
    return NEAR_THE_THRESHOLD.format(number=number, author=author).replace("\n", "\r\n").encode()


def report(running: Service, content: bytes, kind: str = "ham", reporter: str = "ann", **more):
    border = {"envelopeFrom": "", "envelopeRecipients": ["ann@example.net"], "remoteAddress": CLIENT}
    parameters = {"kind": kind, "reporter": reporter, "borderMtaData": border, **more}
    headers = {
        "Authorization": f"Bearer {more.pop('token', TOKEN)}",
        "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
    }
    return running.request("POST", "/v1/feedback", multipart(json.dumps(parameters).encode(), content), headers)


def report_scanned(running: Service, content: bytes, kind: str = "ham", reporter: str = "ann", **more):
    """As the bridge does it: with the ggrid of the mail's analysis."""
    ggrid = running.submit(content, remoteAddress=CLIENT, **more).json["ggrid"]
    return report(running, content, kind, reporter, ggrid=ggrid, **more)


def tags_of(running: Service, content: bytes, **more) -> set[str]:
    found = running.submit(content, remoteAddress=CLIENT, **more).json["tags"]
    return {tag for tag in found if tag.startswith("phishing:")}


@pytest.mark.long
def test_two_nodes_learn_from_each_other(tmp_path) -> None:
    """What people report to one node changes the score on the other one, for that sender only, until it is reset."""
    (tmp_path / "service.yml").write_text(CONFIG)
    with service_processes(tmp_path, 2) as (one, other):
        likely = tags_of(other, mail())
        assert likely == {"phishing:likely"}
        for person in ("ann", "bob", "eve"):
            assert report_scanned(one, mail(), reporter=person).json == {"learned": True}
        assert report_scanned(one, mail()).json == {"learned": False}
        until(lambda: tags_of(other, mail(2)) != likely, "the votes to count")
        assert tags_of(other, mail(2, "service@else.example")) == likely
        assert tags_of(other, mail(2), tenantUid=TENANT) != likely, "the deployment's votes count for its tenants"

        shown = json.loads(command(tmp_path, "learning", "show", "--json").stdout)
        assert shown["senders"] == {"shop.example 192.0.2.0/24": -MAX_OF_SENDER}
        saved = command(tmp_path, "learning", "export")
        assert len(saved.stdout.splitlines()) == 3 and "ann" not in saved.stdout
        (tmp_path / "votes.jsonl").write_text(saved.stdout)

        assert "3 votes removed" in command(tmp_path, "learning", "reset", "--yes").stderr
        until(lambda: tags_of(other, mail(2)) == likely, "the votes to count")
        (tmp_path / "wrong.jsonl").write_text(saved.stdout + "nonsense\n")
        assert command(tmp_path, "learning", "import", "wrong.jsonl").returncode == 1
        assert tags_of(other, mail(2)) == likely
        assert command(tmp_path, "learning", "import", "votes.jsonl").returncode == 0
        until(lambda: tags_of(other, mail(2)) != likely, "the votes to count")
        assert command(tmp_path, "learning", "export").stdout == saved.stdout


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe{\0", b"\x1f\x8b\x08\xff", b"{" * 50_000], ids=["empty", "utf-16", "gzip", "long"]
)
def test_an_import_of_something_else_deletes_nothing(tmp_path, content) -> None:
    """Such as the empty file that a failed export leaves, or one that was compressed."""
    (tmp_path / "service.yml").write_text(CONFIG)
    vote = Vote("a" * 64, "b" * 64, "spam", "shop.example", "", ("signal",), time.time()).to_json()
    (tmp_path / "votes.jsonl").write_text(f"{vote}\n")
    assert command(tmp_path, "learning", "import", "votes.jsonl").returncode == 0
    (tmp_path / "other").write_bytes(content)
    refused = command(tmp_path, "learning", "import", "other")
    assert refused.returncode == 1 and refused.stderr.startswith("other: ") and "nothing was changed" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert command(tmp_path, "learning", "export").stdout == f"{vote}\n"


def test_a_reset_deleted_all_votes_without_a_question(tmp_path) -> None:
    """What people taught in months was gone, and every other command that deletes for good asks."""
    (tmp_path / "service.yml").write_text(CONFIG)
    vote = Vote("a" * 64, "b" * 64, "spam", "shop.example", "", ("signal",), time.time()).to_json()
    (tmp_path / "votes.jsonl").write_text(f"{vote}\n")
    assert command(tmp_path, "learning", "reset").returncode == 0, "there is nothing to lose"
    command(tmp_path, "learning", "import", "votes.jsonl")
    refused = command(tmp_path, "learning", "reset")
    assert refused.returncode == 2 and "this would permanently delete 1 vote" in refused.stderr
    assert command(tmp_path, "learning", "export").stdout == f"{vote}\n"
    assert "1 vote removed" in command(tmp_path, "learning", "reset", "--yes").stderr


def test_a_tenants_reports_stay_with_the_tenant(tmp_path) -> None:
    """Nobody else's mail is judged differently because of them."""
    with service(tmp_path) as running:
        for person in ("ann", "bob", "eve"):
            assert report_scanned(running, mail(), reporter=person, tenantUid=TENANT).status == 200
        until(lambda: tags_of(running, mail(2), tenantUid=TENANT) != {"phishing:likely"}, "the votes to count")
        assert tags_of(running, mail(2)) == {"phishing:likely"}


def test_reports_deliver_nothing_dangerous_and_nothing_that_is_blocked(tmp_path) -> None:
    """A program, or a blocked sender, stays what it is, whatever people say about the sender."""
    with service(tmp_path) as running:
        program = mail().replace(b"text/html; charset=utf-8", b"application/x-dosexec; name=a.exe")
        before = running.submit(program, remoteAddress=CLIENT).json
        for person in ("ann", "bob", "eve"):
            report_scanned(running, mail(), reporter=person)
        until(lambda: tags_of(running, mail(2)) != {"phishing:likely"}, "the votes to count")
        after = running.submit(program, remoteAddress=CLIENT).json
        assert (after["decision"], after["tags"]) == (before["decision"], before["tags"])


def metric(running: Service, name: str) -> float:
    lines = running.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"scanservice_learning_{name} "))


def test_a_report_belongs_to_the_mail_that_was_scanned(tmp_path) -> None:
    """Whoever could report could name any client for a mail that nobody ever sent, and vote for any sender."""
    with service(tmp_path) as running:
        ggrid = running.submit(mail(), remoteAddress=CLIENT).json["ggrid"]
        for wrong in ({"tenantUid": TENANT}, {"content": mail() + b"x"}):
            answer = report(running, wrong.pop("content", mail()), ggrid=ggrid, **wrong)
            assert (answer.status, answer.json["error"]) == (409, "other_mail")
        for unknown in ({}, {"ggrid": "00000000-0000-4000-8000-000000000000"}):
            for person in ("ann", "bob", "eve"):
                assert report(running, mail(), reporter=person, **unknown).status == 200
        until(lambda: metric(running, "votes") == 3, "the votes to count")
        assert metric(running, "weights") == 0 and tags_of(running, mail(2)) == {"phishing:likely"}
        assert report(running, mail(3), ggrid=running.submit(mail(3), remoteAddress=CLIENT).json["ggrid"]).status == 200
        until(lambda: metric(running, "weights") == 1, "a sender's weight to change")
        assert metric(running, 'reports_total{outcome="refused"}') == 2
        assert metric(running, 'reports_total{outcome="learned"}') == 4
        assert metric(running, 'reports_total{outcome="known"}') == 3
        assert abs(metric(running, "followed_time_seconds") - time.time()) < 60


WRONG = (
    {"kind": "maybe"},
    {"reporter": ""},
    {"reporter": 7},
    {"ggrid": ["x"]},
    {"ggrid": "a\0b"},
    {"tenantUid": "x"},
    {"borderMtaData": []},
)


def test_what_is_wrong_with_a_report_is_said(tmp_path) -> None:
    """A client is told which field is wrong."""
    with service(tmp_path) as running:
        for wrong in WRONG:
            answer = report(running, mail(), **wrong)
            assert (answer.status, answer.json["error"]) == (400, "invalid_parameters"), wrong
            assert next(iter(wrong)) in answer.json["message"]


def test_a_report_needs_its_permission_and_can_be_switched_off(tmp_path) -> None:
    """A token that may only scan teaches nothing; neither does anybody if `learn` is false."""
    scan_only = CONFIG.replace(f"token: {TOKEN}", f"token: {TOKEN}, permissions: [scan]")
    with service(tmp_path, scan_only) as running:
        assert report(running, mail()).json["error"] == "forbidden"
    with service(tmp_path, CONFIG + "analyzers: {phishing: {learn: false}}\n") as running:
        assert report(running, mail()).json["error"] == "learning_disabled"
