"""Engines: real clamd and rspamd, and faulty ones."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from bridge.service.analysis import clamav
from bridge.service.analysis import rspamd as rspamd_engine
from bridge.service.analysis.connections import BadAnswer, counted
from bridge.service.analysis.engine import Findings, LimitReached, as_tag
from bridge.service.analysis.engines import engines_of
from bridge.service.analysis.opinions import together
from bridge.service.analyzer_settings import Analyzers
from tests.service.lying_server import hasty, is_whole
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    EICAR,
    GTUBE,
    attached,
    mail,
    multipart,
    parameters_json,
    service,
    submit_head,
    wait_for,
    zipped,
)

MIB = 1024 * 1024


@pytest.mark.long
def test_real_engines_decide(tmp_path, clamd, rspamd):
    """With rspamd and ClamAV, GTUBE is bounced, EICAR in a zip attachment quarantined, a clean mail delivered."""
    engines = f"clamav: {{address: '127.0.0.1:{clamd.port}'}}, rspamd: {{url: 'http://127.0.0.1:{rspamd.port}'}}"
    with service(tmp_path, CONFIG + f"analyzers: {{mime: null, {engines}}}\n") as running:
        assert running.submit(mail(b"Hello\r\n")).json["decision"] == "deliver"
        gtube = running.submit(mail(GTUBE + b"\r\n"), senderHelo="a\r\nX: y\xff", remoteAddress="192.0.2.1").json
        assert (gtube["decision"], "rspamd:reject" in gtube["tags"]) == ("bounce", True), gtube["tags"]
        eicar = running.submit(attached(zipped(("eicar.com", EICAR)))).json
        assert eicar["decision"] == "quarantine"
        assert any(tag.startswith("malware:lab.eicar") for tag in eicar["tags"])


def test_clamd_gets_the_objects_of_an_ambiguous_mail(tmp_path, clamd):
    """A file that clamd itself does not find in the mail, because it reads the structure in its own way."""
    # Some mail programs drop what does not complete a group at the end of a line; clamd does not.
    encoded = b"".join(base64.b64encode(EICAR[at : at + 3]) + b"XX\r\n" for at in range(0, len(EICAR), 3))
    hidden = b"From: a@example.org\r\nContent-Transfer-Encoding: base64\r\n\r\n" + encoded
    engine = f"clamav: {{address: '127.0.0.1:{clamd.port}'}}"
    (tmp_path / "alone").mkdir()
    with service(tmp_path / "alone", CONFIG + f"analyzers: {{mime: null, {engine}}}\n") as alone:
        assert alone.submit(hidden).json["decision"] == "deliver"
    with service(tmp_path, CONFIG + f"analyzers: {{{engine}}}\n") as running:
        answer = running.submit(hidden).json
        assert "mime:ambiguous:content-encoding" in answer["tags"]
        assert any(tag.startswith("malware:lab.eicar") for tag in answer["tags"]), answer["tags"]
        assert answer["decision"] == "quarantine"


def test_a_zip_beyond_clamds_limits_is_undecided(tmp_path, clamd):
    """clamd reports that it did not scan everything, so the mail is not delivered."""
    big = attached(zipped(("big", os.urandom(12 * MIB))), "a.zip")
    with service(tmp_path, CONFIG + f"analyzers: {{clamav: {{address: '127.0.0.1:{clamd.port}'}}}}\n") as running:
        answer = running.submit(big).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["incomplete", "limit:clamav"])


def test_a_mail_over_the_engines_size_is_undecided(tmp_path, clamd):
    """A mail that is not sent to a required engine is not delivered."""
    settings = f"{{address: '127.0.0.1:{clamd.port}', max_size: 1MiB}}"
    with service(tmp_path, CONFIG + f"analyzers: {{clamav: {settings}}}\n") as running:
        assert running.submit(mail(b"x" * MIB)).json["tags"] == ["incomplete", "limit:clamav"]
        assert running.submit(mail(b"x")).json["decision"] == "deliver"


def test_a_frozen_or_killed_clamd_leaves_mail_undecided(tmp_path, own_clamd):
    """Mail is undecided if clamd is required, else delivered with a tag; both within the timeout, and it recovers."""
    address = f"timeout: 4s, address: '127.0.0.1:{own_clamd.port}'"
    required, optional = (CONFIG + f"analyzers: {{clamav: {{{address}, required: {r}}}}}\n" for r in ("true", "false"))
    (tmp_path / "lenient").mkdir()
    with service(tmp_path, required) as strict, service(tmp_path / "lenient", optional) as lenient:
        assert strict.submit(mail()).json["decision"] == "deliver"
        with own_clamd.frozen():
            start = time.monotonic()
            assert strict.submit(mail()).json["tags"] == ["failed:clamav", "incomplete"]
            answer = lenient.submit(mail()).json
            assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:clamav"])
            assert time.monotonic() - start < 50
        assert strict.submit(mail()).json["decision"] == "deliver"
        own_clamd.kill()
        assert strict.submit(mail()).json["decision"] == "undecided"
        assert strict.submit(attached(EICAR)).json["decision"] == "quarantine"
        answer = lenient.submit(mail()).json
        assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:clamav"])
        assert b'scanservice_analyzer_failures_total{analyzer="clamav"} 3.0' in strict.request("GET", "/metrics").body


@contextmanager
def stub(reply: bytes | None, hang: bool = False):
    """A server that reads the mail, sends `reply` and closes the connection, or hangs."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                if hang:
                    done.wait(DEADLINE_S)
                    continue
                request = client.recv(65536)
                while not _is_whole_question(request) and (more := client.recv(65536)):
                    request += more
                client.sendall(reply or b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(DEADLINE_S)


def _is_whole_question(request: bytes) -> bool:
    """The question to clamd, or over HTTP; that to spamd ends with the connection."""
    if request.startswith(b"zINSTREAM"):
        return request.endswith(bytes(4))
    return b" HTTP/1.1\r\n" in request and is_whole(request)


def _http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "reply",
    [b"", b"nonsense", _http(b""), _http(b"[]"), _http(b'{"score": 1}'), _http(b'{"action": "reject", "score": NaN}'),
     _http(b'{"action": 5}'), _http(b"{}", "500 No"), _http(b'{"action":"no action"}', "302 Found"),
     _http(b'{"action": "reject", "action": "no action"}'), _http(b'{"action": "add header", "score": 9, "score": 0}'),
     _http(b'{"action": "add header", "score": 1' + b"0" * 400 + b"}")],
)  # fmt: skip
def test_malformed_answers_of_rspamd_leave_mail_undecided(tmp_path, reply):
    """Without a valid answer from a required engine, mail is not delivered."""
    with (
        stub(reply) as port,
        service(tmp_path, CONFIG + f"analyzers: {{rspamd: {{url: 'http://127.0.0.1:{port}'}}}}\n") as running,
    ):
        answer = running.submit(mail()).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:rspamd", "incomplete"])


async def test_each_engine_gets_its_own_timeout(installed_plugin):
    """Not the default, nor another engine's: the tests with faulty servers allow more time than the defaults."""
    settings = Analyzers.model_validate(
        {
            "clamav": {"address": "127.0.0.1:1", "timeout": "1s"},
            "rspamd": {"url": "http://127.0.0.1:1", "timeout": "2s"},
            "icap": {"url": "icap://127.0.0.1:1/x", "timeout": "3s"},
            "spamassassin": {"address": "127.0.0.1:1", "timeout": "4s"},
            "authentication": {"dns": True, "timeout": "5s"},
            "hooks": {"invoices": {"url": "http://127.0.0.1:1/", "timeout": "6s"}},
            "plugins": {"word": {"timeout": "7s"}},
        }
    )
    engines = engines_of(settings)
    given = {
        engine.name: engine.analyzer._settings.timeout if engine.timeout_s is None else engine.timeout_s
        for engine in engines
    }
    steps = {engine.name: engine.analyzer._client.timeout for engine in engines if hasattr(engine.analyzer, "_client")}
    for engine in engines:
        await engine.analyzer.close()
    names = ("clamav", "rspamd", "icap", "spamassassin", "authentication", "invoices", "word")
    assert given == {name: number for number, name in enumerate(names, 1)}
    assert {name: step.read for name, step in steps.items()} == {"rspamd": 2, "invoices": 6}


def test_an_engine_that_hangs_is_abandoned_after_its_timeout(tmp_path):
    """The mail is undecided after the engine's own timeout, and other engines' findings still count."""
    with stub(None, hang=True) as port:
        text = CONFIG + f"analyzers: {{clamav: {{address: '127.0.0.1:{port}', timeout: 300ms}}}}\n"
        with service(tmp_path, text) as running:
            start = time.monotonic()
            assert running.submit(mail()).json["decision"] == "undecided"
            assert 0.25 < time.monotonic() - start < 50
            assert running.submit(mail(GTUBE)).json["decision"] == "bounce"


def test_a_client_that_disconnects_cancels_its_analysis(tmp_path):
    """The slot is free again long before the engine's timeout."""
    with stub(None, hang=True) as port:
        text = CONFIG.replace("{restApi: {}}", "{restApi: {}}, mainWorkerCount: 1")
        text += f"analyzers: {{clamav: {{address: '127.0.0.1:{port}', timeout: 60s}}}}\n"
        with service(tmp_path, text) as running:
            body = multipart(parameters_json(), mail())
            with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
                client.sendall(submit_head(len(body)) + body)
                wait_for(lambda: running.status().json == {"messageQueueStatus": "RED"})
            start = time.monotonic()
            wait_for(lambda: running.status().json != {"messageQueueStatus": "RED"})
            assert time.monotonic() - start < 50
            assert running.status().json == {"messageQueueStatus": "GREEN"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"stream: OK\0", Findings()),
        (b"stream: Win.Test.EICAR_HDB-1 FOUND\0", Findings(frozenset({"malware:win.test.eicar_hdb-1"}))),
        (b"stream: Heuristics.Encrypted.Zip FOUND\0", Findings(frozenset({"clamav:encrypted"}))),
        (b"stream: Heuristics.Limits.Exceeded.MaxFileSize FOUND\0", LimitReached),
        (b"INSTREAM size limit exceeded. ERROR\0", LimitReached),
        (b"stream: Can't allocate memory ERROR\0", clamav.ClamdError),
        (b"", clamav.ClamdError),
    ],
)
def test_clamds_answers(answer, expected):
    """OK means no findings, FOUND means malware or a limit, anything else is no answer."""
    if isinstance(expected, Findings):
        assert clamav.read_answer(answer) == expected
    else:
        with pytest.raises(expected):
            clamav.read_answer(answer)


def test_rspamds_score_and_action_are_used():
    """The action becomes a tag, and the score counts by rspamd's own thresholds."""
    found = rspamd_engine.read_answer(json.dumps({"action": "add header", "score": 6.5}).encode(), 15.0)
    assert found == Findings(frozenset({"rspamd:add-header"}), opinion=6.5)
    for action, score, required, opinion in [
        ("add header", 12.0, 30.0, 3.0),
        ("add header", 14.9, 15.0, 7.45),
        ("my action", 100.0, 15.0, 7.5),
        ("reject", 30.0, 30.0, 15.0),
        ("reject", 1000.0, 15.0, 15.0),
        ("greylist", 5.9, 15.0, 0.0),
        ("reject", 3.0, 15.0, 3.0),
        ("no action", -3.0, 15.0, -1.5),
        ("no action", 1.0, None, 0.0),
    ]:
        answer = {"action": action, "score": score, "required_score": required}
        assert rspamd_engine.read_answer(json.dumps(answer).encode(), 7.5).opinion == opinion


@pytest.mark.parametrize(
    ("rspamd_says", "spamd_says", "decision"),
    [
        (("no action", 3.9), "False ; 4.9 / 5.0", "deliver"),
        (("greylist", 5.9), "False ; 4.9 / 5.0", "deliver"),
        (("add header", 8.5), "False ; 0.0 / 5.0", "quarantine"),
        (("no action", 0.0), "True ; 5.0 / 5.0", "quarantine"),
        (("add header", 14.0), "True ; 9.0 / 5.0", "quarantine"),
    ],
)
def test_filters_that_call_a_mail_legitimate_held_it_together(tmp_path, rspamd_says, spamd_says, decision):
    """Their scores were added, so newsletters were quarantined that neither of them called spam. Both filters count as
    much as they can here: what each calls spam is held."""
    assert _decided(tmp_path, rspamd_says, spamd_says, mail(), "spam_score: 15", "spam_score: 8") == decision


SUSPECTED = {"header:duplicate": 6.5}  # as if our own signals gave it as many points


@pytest.mark.parametrize(
    ("rspamd_says", "spamd_says", "alone", "suspected"),
    [
        (("no action", 3.0), "False ; 3.0 / 5.0", "deliver", "deliver"),
        (("add header", 14.0), "False ; 3.0 / 5.0", "deliver", "quarantine"),
        (("no action", 0.0), "True ; 8.0 / 5.0", "deliver", "quarantine"),
        (("add header", 14.0), "True ; 19.0 / 5.0", "deliver", "quarantine"),
        (("no action", -3.0), "True ; 20.0 / 5.0", "quarantine", "bounce"),
        (("reject", 15.0), "False ; 0.0 / 5.0", "bounce", "bounce"),
    ],
)
def test_engines_held_mail_that_nothing_else_made_suspicious(tmp_path, rspamd_says, spamd_says, alone, suspected):
    """By default, another filter's word quarantines only a mail that we suspect ourselves. Before, rspamd and
    SpamAssassin held a tenth of the legitimate mail. Far above their thresholds, they still decide alone."""
    for expected, content in ((alone, mail()), (suspected, b"Subject: a\r\n" + mail())):
        assert _decided(tmp_path, rspamd_says, spamd_says, content) == expected


def _decided(tmp_path, rspamd_says, spamd_says, content: bytes, rspamd: str = "", spamassassin: str = "") -> str:
    action, score = rspamd_says
    answer = json.dumps({"action": action, "score": score, "required_score": 15.0}).encode()
    spamd = f"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\nSpam: {spamd_says}\r\n\r\n".encode()
    with stub(_http(answer)) as http_port, stub(spamd) as spamd_port:
        engines = f"rspamd: {{url: 'http://127.0.0.1:{http_port}', {rspamd}}}, "
        engines += f"spamassassin: {{address: '127.0.0.1:{spamd_port}', {spamassassin}}}"
        decisions = f"decisions: {{scores: {json.dumps(SUSPECTED)}}}\n"
        with service(tmp_path, CONFIG + f"analyzers: {{{engines}}}\n" + decisions) as running:
            return str(running.submit(content).json["decision"])


@pytest.mark.parametrize(
    ("opinions", "points"), [([], 0), ([3, 5], 5), ([8, -2], 6), ([-1, -2], -3), ([0.0], 0), ([4, 4, -1, -1], 2)]
)
def test_the_worst_opinion_counts_and_good_ones_reduce_it(opinions, points):
    """As before, a good opinion of one filter makes up for a bad one of another."""
    assert together(opinions) == points


def test_names_from_other_programs_become_tags():
    """A tag is short and plain, whatever an engine calls its finding."""
    assert as_tag("Win.X_1/ä\n") == "win.x_1"
    assert len(as_tag("x" * 500)) == 100


@pytest.mark.parametrize(
    ("name", "settings", "reply"),
    [
        ("clamav", "address: '127.0.0.1:{port}'", b"stream: OK\0"),
        ("spamassassin", "address: '127.0.0.1:{port}', max_size: 50MiB",
         b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\nSpam: False ; 0.0 / 5.0\r\n\r\n"),
        ("rspamd", "url: 'http://127.0.0.1:{port}'", _http(b'{"action": "no action", "score": 0}')),
    ],
)  # fmt: skip
def test_an_engine_that_had_not_read_the_mail_called_it_clean(tmp_path, name, settings, reply):
    """Its answer counted although the rest of the mail could not be sent."""
    answer = _early(tmp_path, name, settings, reply)
    assert (answer["decision"], f"failed:{name}" in answer["tags"]) == ("undecided", True), answer


def _early(tmp_path, name: str, settings: str, reply: bytes) -> dict:
    large = mail(b"x" * 70 + b"\r\n" + b"y" * 70 + b"\r\n" * (4 * MIB))
    with hasty(reply) as server:
        engine = f"{name}: {{{settings.format(port=server.port)}}}"
        with service(tmp_path, CONFIG + f"analyzers: {{mime: null, urls: null, {engine}}}\n") as running:
            return running.submit(large).json


@pytest.mark.parametrize(
    ("name", "settings", "reply", "decision", "tag"),
    [
        ("clamav", "address: '127.0.0.1:{port}'", b"stream: Eicar FOUND\0", "quarantine", "malware:eicar"),
        ("spamassassin", "address: '127.0.0.1:{port}'",
         b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\nSpam: True ; 50.0 / 5.0\r\n\r\n",
         "quarantine", "spamassassin:spam"),
        ("rspamd", "url: 'http://127.0.0.1:{port}'", _http(b'{"action": "reject", "score": 20, "required_score": 15}'),
         "bounce", "rspamd:reject"),
        ("rspamd", "url: 'http://127.0.0.1:{port}'", _http(b'{"action": "soft reject"}'),
         "undecided", "rspamd:soft-reject"),
    ],
)  # fmt: skip
def test_what_an_engine_found_in_the_beginning_of_a_mail_was_lost(tmp_path, name, settings, reply, decision, tag):
    """It said so before it had read the rest. If it is not required, the mail was delivered."""
    answer = _early(tmp_path, name, settings + ", required: false", reply)
    assert (answer["decision"], tag in answer["tags"]) == (decision, True), answer
    assert f"failed:{name}" not in answer["tags"]


def test_an_early_answer_says_nothing_in_favour_of_a_mail():
    """Points that it deducts would make up for what another engine found."""
    found = Findings(frozenset({"a:b"}), score=-5.0, opinion=-3.0)
    assert counted(found, has_sent_all=True, is_bad=False) == found
    assert counted(found, has_sent_all=False, is_bad=True) == Findings(frozenset({"a:b"}))
    with pytest.raises(BadAnswer):
        counted(found, has_sent_all=False, is_bad=False)


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        (b"stream: OK\0", "deliver"),
        (b"stream: OK\0stream: Eicar FOUND\0", "undecided"),
        (b"stream: Eicar FOUND\0stream: OK\0", "quarantine"),
    ],
)
def test_clamd_that_contradicts_itself(tmp_path, reply, decision):
    """The first of two answers counted, and the mail was delivered."""
    with stub(reply) as port:
        config = CONFIG + f"analyzers: {{clamav: {{address: '127.0.0.1:{port}'}}}}\n"
        with service(tmp_path, config) as running:
            assert running.submit(mail()).json["decision"] == decision


@pytest.mark.parametrize("helo", ["mail.example ", " mail.example", " ", "", "a\tb", "x" * 999 + " y"])
def test_a_sender_switched_rspamd_off_with_a_space_in_its_helo(tmp_path, helo):
    """The HTTP library refused to send it, and if rspamd is not required, the mail was delivered without its answer."""
    with stub(_http(b'{"action": "reject", "score": 20, "required_score": 15}')) as port:
        engine = f"rspamd: {{url: 'http://127.0.0.1:{port}', required: false}}"
        with service(tmp_path, CONFIG + f"analyzers: {{{engine}}}\n") as running:
            answer = running.submit(mail(), sender=f"{helo}@example.org", senderHelo=helo).json
            assert answer["decision"] == "bounce", answer


def test_a_sender_switched_rspamd_off_with_a_byte_that_is_not_utf_8():
    """rspamd repeats the Message-ID and other fields as they are, and its answer then counted as malformed."""
    raw = b'{"action": "reject", "score": 20, "required_score": 15, "message-id": "\xff@example.org"}'
    assert rspamd_engine.read_answer(raw, 7.5) == Findings(frozenset({"rspamd:reject"}), opinion=15.0)


@pytest.mark.long
def test_a_real_rspamd_answers_about_a_mail_that_is_not_utf_8(tmp_path, rspamd):
    engine = f"rspamd: {{url: 'http://127.0.0.1:{rspamd.port}'}}"
    with service(tmp_path, CONFIG + f"analyzers: {{mime: null, {engine}}}\n") as running:
        content = b"Message-ID: <\xff\xfe@example.org>\r\nX-Mailer: \xff\r\n" + mail(GTUBE + b"\r\n")
        answer = running.submit(content, senderHelo="mail.example ").json
        assert (answer["decision"], "rspamd:reject" in answer["tags"]) == ("bounce", True), answer
