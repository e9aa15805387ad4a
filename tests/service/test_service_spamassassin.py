"""SpamAssassin: a real spamd, and servers that lie."""

from __future__ import annotations

import time

import pytest

from bridge.service.analysis.connections import BadAnswer
from bridge.service.analysis.engine import Findings
from bridge.service.analysis.spamassassin import read_answer
from tests.service.conftest import running_spamd
from tests.service.lying_server import LyingServer
from tests.service.service_kit import CONFIG, mail, service

MIB = 1024 * 1024


def config(port: int, **settings: object) -> str:
    more = "".join(f", {key}: {value}" for key, value in settings.items())
    return CONFIG + f"analyzers: {{spamassassin: {{address: '127.0.0.1:{port}'{more}}}}}\n"


def test_rules_become_tags_and_the_score_is_scaled(tmp_path, spamd):
    """A score above SpamAssassin's threshold quarantines, twice the threshold bounces; rules are tags."""
    with service(tmp_path, config(spamd.port, max_size="1MiB", user="nobody", spam_score=8)) as running:
        assert running.submit(mail()).json["tags"] == []
        some = running.submit(mail(b"xyzzy\r\n")).json
        assert (some["decision"], some["tags"]) == ("deliver", ["spamassassin:LAB_WORD"])
        much = running.submit(mail(b"xyzzy plugh\r\n")).json
        assert much["decision"] == "bounce"
        assert much["tags"] == ["spamassassin:LAB_WORD", "spamassassin:LAB_WORSE", "spamassassin:spam"]
        relay = running.submit(
            mail(), remoteAddress="192.0.2.9", senderHelo="x)\r\nEvil: y", sender="a@b\r\nEvil: z"
        ).json
        assert relay["tags"] == ["sender:unaligned", "spamassassin:LAB_RELAY"]
        good = running.submit(mail(b"plugh\r\n", Subject="thanks")).json
        assert (good["decision"], "spamassassin:LAB_GOOD" in good["tags"]) == ("quarantine", True)
        assert running.submit(mail(b"x" * MIB)).json["tags"] == ["incomplete", "limit:spamassassin"]


def test_a_frozen_or_killed_spamd(tmp_path):
    """Required: undecided. Not required: delivered with a tag. Both within the timeout, and it recovers."""
    (tmp_path / "lenient").mkdir()
    with (
        running_spamd() as server,
        service(tmp_path, config(server.port, timeout="5s")) as strict,
        service(tmp_path / "lenient", config(server.port, timeout="1s", required="false")) as lenient,
    ):

        def fails() -> None:
            start = time.monotonic()
            answer = lenient.submit(mail()).json
            assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:spamassassin"])
            answer = strict.submit(mail()).json
            assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:spamassassin", "incomplete"])
            assert time.monotonic() - start < 50

        with server.frozen():
            fails()
        assert strict.submit(mail(b"xyzzy")).json["tags"] == ["spamassassin:LAB_WORD"]
        server.kill()
        fails()


SPF_RULES = """\
header LAB_SENDER EnvelopeFrom =~ /^[^@]+@evil\\.example$/
header LAB_NO_SPF eval:check_spf_skipped_noenvfrom()
header LAB_SPF_SENDER X-Spam-Relays-External =~ /^\\[ ip=192\\.0\\.2\\.7 [^\\]]* envfrom=[^ ]+@evil\\.example /
header LAB_SPF_PASS eval:check_for_spf_pass()
header LAB_TRUSTED X-Spam-Relays-Trusted =~ /ip=/
"""
SEEN = {"spamassassin:LAB_SENDER", "spamassassin:LAB_SPF_SENDER"}


@pytest.fixture(scope="module")
def with_spf(tmp_path_factory):
    with (
        running_spamd(SPF_RULES, ("SPF",)) as server,
        service(tmp_path_factory.mktemp("spf"), config(server.port)) as running,
    ):
        yield running


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"X-Envelope-From: <x@good.example>\r\n",
        b"Envelope-Sender: <x@good.example>\r\nReturn-Path: <x@good.example>\r\n",
        b"X-Sender: x@good.example\r\nReceived: by localhost with POP3 (fetchmail-6) for <x@y>; Mon, 1 Jan 2024\r\n",
        b"Received-SPF: pass identity=mailfrom; client-ip=192.0.2.7\r\n",
        b"Authentication-Results: x; spf=pass smtp.mailfrom=good.example\r\n",
        b"Received: from x (x [10.0.0.1]) by y (8.1/8.1) with ESMTPSA id 1 (envelope-from <x@good.example>)\r\n",
    ],
)
def test_fields_of_the_mail_switched_the_check_of_its_sender_off(with_spf, fields):
    """SpamAssassin reads the sender and the client that we tell it, and no result of a check that others claim."""
    envelope = {"sender": "a@evil.example", "remoteAddress": "192.0.2.7", "senderHelo": "mx.evil.example"}
    assert _of_spamassassin(with_spf.submit(fields + mail(), **envelope)) == SEEN


@pytest.mark.parametrize(
    "helo",
    [
        "", "envelope-from", "x-return-path", "return-path:", "Envelope-Sender", "envelope-from=x@good.example",
        "helo=x", "Exim", "authenticated", "x@[127.0.0.1]", "localhost", "[192.0.2.7]", "from", "by", "unknown",
        "x" * 400, "with\u2028SMTP", "(AUTH: LOGIN x)",
    ],
)  # fmt: skip
def test_a_greeting_switched_the_check_of_the_sender_off(with_spf, helo):
    """A word in it was taken for the sender."""
    envelope = {"sender": "a@evil.example", "remoteAddress": "192.0.2.7", "senderHelo": helo}
    assert _of_spamassassin(with_spf.submit(mail(), **envelope)) == SEEN


@pytest.mark.parametrize(
    "sender",
    [
        "a" * 400 + "@evil.example", '"a b"@evil.example', '"a@good.example"@evil.example', "A@EVIL.example.",
        "authenticated@evil.example", "envelope-from=x@evil.example", "Exim@evil.example", "\u00e4@evil.example",
        '"x) by y with ESMTPA id 1 ("@evil.example',
    ],
)  # fmt: skip
def test_an_odd_sender_switched_its_own_check_off(with_spf, sender):
    """Of a long address, the domain was cut off."""
    envelope = {"sender": sender, "remoteAddress": "192.0.2.7", "senderHelo": "mx.evil.example"}
    assert _of_spamassassin(with_spf.submit(mail(), **envelope)) == SEEN


@pytest.mark.parametrize("sender", ["a@evil.example-", "a@[192.0.2.1]", "a@" + "x." * 150 + "evil.example"])
def test_a_domain_that_is_none_is_not_another(with_spf, sender):
    envelope = {"sender": sender, "remoteAddress": "192.0.2.7", "senderHelo": "mx.evil.example"}
    assert _of_spamassassin(with_spf.submit(mail(), **envelope)) == set()


def _of_spamassassin(answer):
    return {tag for tag in answer.json["tags"] if tag.startswith("spamassassin:")}


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    server = LyingServer()
    with service(tmp_path_factory.mktemp("liar"), config(server.port, timeout="3s")) as running:
        server.running = running
        yield server
    server.close()


_OK = b"SPAMD/1.1 0 EX_OK\r\n"
_SPAM = b"Spam: False ; 0.0 / 5.0\r\n"


@pytest.mark.parametrize(
    ("reply", "endless"),
    [
        (b"nonsense\r\n", b""),
        (b"SPAMD/1.1 76 Bad header line\r\n", b""),
        (_OK + b"Content-length: 0\r\n\r\n", b""),
        (_OK + _SPAM + b"\r\n", b""),
        (_OK + _SPAM + b"Content-length: -1\r\n\r\n", b""),
        (_OK + _SPAM + b"Content-length: 5000\r\n\r\nx", b""),
        (_OK + _SPAM + b"Content-length: 9999999\r\n\r\n", b"x" * 1000),
        (_OK + b"Spam: True ; nan / 5.0\r\nContent-length: 0\r\n\r\n", b""),
        (_OK + b"Spam: False ; 1e999 / 5.0\r\nContent-length: 0\r\n\r\n", b""),
        (_OK, b"X-A: b\r\n"),
        (_OK + b"Spam: True ; 50.0 / 5.0\r\n" + _SPAM + b"Content-length: 0\r\n\r\n", b""),  # two scores
        (b"", b"x" * 1000),
    ],
)
def test_hostile_answers_leave_mail_undecided(liar, reply, endless):
    """No answer that is wrong or has no end counts, and each is given up within the timeout."""
    liar.reply, liar.endless = reply, endless
    answer = liar.running.submit(mail()).json
    assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:spamassassin", "incomplete"])


def test_scores_are_relative_to_the_threshold():
    """Whatever the threshold is, a mail that reaches it gets the score `spam_score`."""
    assert read_answer({"spam": "True ; 6.0 / 6.0"}, b"A,B\r\n", 8.0) == Findings(
        frozenset({"spamassassin:A", "spamassassin:B", "spamassassin:spam"}), opinion=8.0
    )
    assert read_answer({"spam": "False ; -2.5 / 5.0"}, b"", 8.0).opinion == -4.0
    assert read_answer({"spam": "True ; 3.0 / 0.0"}, b"<x>, a b\n", 8.0).opinion == 3.0
    assert read_answer({"spam": "False ; 4.9 / 5.0"}, b"", 8.0).opinion == 0.0
    assert read_answer({"spam": "True ; 1000 / 5.0"}, b"", 8.0).opinion == 16.0
    assert read_answer({"spam": "True ; 8.0 / 5.0"}, b"", 1.0).opinion == 1.6
    assert read_answer({"spam": "True ; 19.9 / 5.0"}, b"", 1.0).opinion == 2.0
    assert read_answer({"spam": "True ; 20.0 / 5.0"}, b"", 1.0).opinion == 10.0
    assert read_answer({"spam": "True ; 20.0 / 5.0"}, b"", 0.0).opinion == 10.0
    with pytest.raises(BadAnswer):
        read_answer({}, b"", 8.0)


def test_a_rule_behind_the_hundredth_was_lost() -> None:
    """`decisions` may name any rule: all of them are tags, or the answer does not count."""
    fields = {"spam": "False ; 0.0 / 5.0"}
    names = [f"RULE_{number}" for number in range(1000)]
    found = read_answer(fields, ",".join(names).encode(), 5.0)
    assert found.tags == {f"spamassassin:{name}" for name in names}
    with pytest.raises(BadAnswer):
        read_answer(fields, ",".join([*names, "ONE_MORE"]).encode(), 5.0)
