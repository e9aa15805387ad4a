"""Custom analyzers: synchronous ones run in a process, asynchronous ones in the event loop."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from tests.service.service_kit import CONFIG, DEADLINE_S, mail, service, wait_for

MIB = 1024 * 1024


def test_a_custom_analyzer_is_used(tmp_path, installed_plugin):
    """An entry point gets its options and the mail, and its tags and score count."""
    text = CONFIG + "analyzers: {plugins: {word: {options: {word: xyzzy}}}}\n"
    with service(tmp_path, text) as running:
        assert running.submit(mail(b"xyzzy")).json["tags"] == ["own:word"]
        assert running.submit(mail(b"xyzzy")).json["decision"] == "quarantine"
        assert running.submit(mail(b"plugh")).json["decision"] == "deliver"


def test_a_broken_custom_analyzer_gives_no_answer(tmp_path, installed_plugin):
    """It cannot take the service down; it only leaves its mail undecided."""
    with service(tmp_path, CONFIG + "analyzers: {plugins: {broken: {}}}\n") as running:
        assert running.submit(mail()).json["decision"] == "undecided"


OBEDIENT = """
analyzers:
  plugins:
    word: {options: {word: Subject}}
    obedient: {memory: 256MiB, processes: 1, timeout: TIMEOUT, required: REQUIRED}
"""


def _obedient(timeout: str = "20s", required: str = "true") -> str:
    return CONFIG + OBEDIENT.replace("TIMEOUT", timeout).replace("REQUIRED", required)


def test_a_synchronous_analyzer_runs_in_a_process_and_gets_the_envelope(tmp_path, installed_plugin):
    """It gets what was submitted; its process is a separate one and is reused for the next mail."""
    tenant = "123e4567-e89b-12d3-a456-426614174000"
    with service(tmp_path, _obedient()) as running:
        request = {"sender": "", "to": ("b@example.net", "ü@example.net"), "remoteAddress": "192.0.2.1"}
        tags = running.submit(mail(b"envelope"), tenantUid=tenant, **request).json["tags"]
        seen = {"to:b@example.net", "to:ü@example.net", "from:", "client:192.0.2.1", f"tenant:{tenant}", "own:word"}
        assert set(tags) == seen
        first, second = (
            running.submit(mail(content)).json["tags"] for content in (b"process", b"x" * MIB + b" process")
        )
        assert first == second
        assert f"process:{os.getpid()}" not in first


@pytest.mark.parametrize(
    ("order", "tag"),
    [
        ("eat", "limit:obedient"),
        pytest.param("refuse", "limit:obedient", marks=pytest.mark.long),
        *((order, "failed:obedient") for order in ("crash", "infinite")),
        *(
            pytest.param(order, "failed:obedient", marks=pytest.mark.long)
            for order in ("leave", "inject", "fail", "recurse", "lie")
        ),
    ],
)
def test_a_failing_synchronous_analyzer_affects_only_its_mail(tmp_path, installed_plugin, order, tag):
    """After a crash or too much memory the mail is undecided, other findings count, and the next mail is fine."""
    with service(tmp_path, _obedient()) as running:
        answer = running.submit(mail(order.encode())).json
        assert (answer["decision"], answer["tags"]) == ("undecided", sorted(["incomplete", "own:word", tag]))
        assert running.submit(mail(b"nothing")).json["tags"] == ["own:word"]


def test_a_synchronous_analyzer_that_raises_keeps_its_process(tmp_path, installed_plugin):
    """An exception or a refusal is an answer; the process is replaced only if its state may be damaged."""
    with service(tmp_path, _obedient()) as running:

        def process() -> list[str]:
            return running.submit(mail(b"process")).json["tags"]

        first = process()
        for order in (b"fail", b"refuse", b"inject"):
            running.submit(mail(order))
        assert process() == first
        running.submit(mail(b"eat"))
        assert process() != first


def test_a_synchronous_analyzer_that_hangs_is_killed_with_its_children(tmp_path, installed_plugin):
    """Its mail is answered after its timeout, other requests meanwhile, and no process is left behind."""
    with service(tmp_path, _obedient("1s")) as running:
        start = time.monotonic()
        answers: list[dict] = []
        hanging = threading.Thread(target=lambda: answers.append(running.submit(mail(b"hang")).json))
        hanging.start()
        wait_for(lambda: b"a-child-of-hang" in _command_lines())
        assert running.status().status == 200
        hanging.join(DEADLINE_S)
        assert answers[0]["tags"] == ["failed:obedient", "incomplete", "own:word"]
        assert 0.9 < time.monotonic() - start < 45
        wait_for(lambda: b"a-child-of-hang" not in _command_lines())
        assert running.submit(mail(b"nothing")).json["tags"] == ["own:word"]


def _command_lines() -> bytes:
    found = b""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += file.read_bytes()
    return found


def test_an_analyzer_that_is_not_required_may_fail(tmp_path, installed_plugin):
    """The mail is decided without it and gets a tag."""
    text = _obedient(required="false").replace("word: Subject", "word: xyzzy")
    with service(tmp_path, text) as running:
        answer = running.submit(mail(b"leave")).json
        assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:obedient"])


def test_an_asynchronous_analyzer_runs_in_the_loop_with_its_timeout(tmp_path, installed_plugin):
    """An analyzer that waits for the network runs in the service and is abandoned after its timeout."""
    with service(tmp_path, CONFIG + "analyzers: {plugins: {waits: {timeout: 300ms}}}\n") as running:
        assert running.submit(mail(b"go")).json["tags"] == [f"process:{os.getpid()}"]
        answer = running.submit(mail(b"hang")).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:waits", "incomplete"])
    assert sys.modules["own_analyzer"].Waits.closed


@pytest.mark.parametrize(("name", "why"), [("eats", "MemoryError"), ("leaves", "process ended"), ("word", "KeyError")])
def test_an_analyzer_that_cannot_be_created_is_a_configuration_error(tmp_path, installed_plugin, name, why):
    """Whatever happens when it is created, the service survives and names the analyzer."""
    with (
        pytest.raises(ConfigError, match=rf"plugins\.{name}: cannot create the analyzer: .*{why}"),
        service(tmp_path, CONFIG + f"analyzers: {{plugins: {{{name}: {{}}}}}}\n"),
    ):
        pass


def test_an_analyzer_that_is_not_installed_is_a_configuration_error(tmp_path):
    """The error appears at start-up, not with the first mail."""
    with (
        pytest.raises(ConfigError, match=r"plugins\.absent"),
        service(tmp_path, CONFIG + "analyzers: {plugins: {absent: {}}}\n"),
    ):
        pass
