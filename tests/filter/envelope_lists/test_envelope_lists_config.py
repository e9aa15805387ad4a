"""Envelope lists in the configuration: what is valid, how mistakes are reported, and what `check` finds."""

from __future__ import annotations

import json
import re
import stat
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.config import model
from bridge.config.model import EMBEDDED, Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.testing import FakeScanner, NextHop, configuration, free_port
from tests.daemon.process_kit import ROOT, WARM, Bridge, environment, scanbridge, until
from tests.filter.envelope_lists.envelope_lists_kit import TENANTS, section
from tests.lists.lists_kit import http, misbehaving

LISTENER = "  - {{name: mx, address: '127.0.0.1:10025', {more}}}\n"
LISTS = "lists: {url: 'http://127.0.0.1:9081', api_key_file: k}\n"


def load(more: str, lists: str = LISTS) -> Config:
    text = (
        "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}\n"
        "listeners:\n" + LISTENER.format(more=more) + "relay: {next_hop: '127.0.0.1:2'}\n" + lists
    )
    return yaml_file.load(Path("bridge.yml"), Config, text)


@pytest.mark.parametrize(
    ("more", "lists", "text"),
    [
        (
            "lists: {block: [a]}",
            "",
            "bridge.yml:1: lists: a listener uses lists: set lists.url and lists.api_key_file",
        ),
        ("lists: {blok: [a]}", LISTS, "bridge.yml:3: listeners.0.lists.blok: unknown key"),
        ("lists: {block: [a, a]}", LISTS, "bridge.yml:3: listeners.0.lists.block: a list appears twice"),
        ("lists: {block: [a], skip_scan: [a]}", LISTS, "bridge.yml:3: listeners.0.lists.skip_scan: a list cannot both"),
        ('lists: {text: "a\\nb"}', LISTS, "bridge.yml:3: listeners.0.lists.text: the text must be printable"),
        (
            "profile: exim-queue, lists: {block: [a]}",
            LISTS,
            "bridge.yml:3: listeners.0.lists: a refusal would become a",
        ),
        ("tls: null", LISTS[:-2] + ", refresh: 0s}\n", "bridge.yml:5: lists.refresh:"),
        ("tls: null", LISTS[:-2] + ", kinds: {a: url}}\n", "bridge.yml:5: lists.kinds.a:"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(more, lists, text):
    """Each error names the key and the next step."""
    with pytest.raises(ConfigError) as caught:
        load(more, lists)
    assert str(caught.value).startswith(text)


def test_a_listener_after_a_queue_may_use_lists_to_skip_the_scan():
    """There, only a refusal would cause a bounce."""
    conf = load("profile: exim-queue, lists: {skip_scan: [allowed-networks]}")
    assert conf.listeners[0].lists.names == ["allowed-networks"]


@pytest.fixture
def check(tmp_path):
    """Runs `scanbridge check` with these lists; returns its lines about lists and its exit code."""

    def run(lists: dict, door: dict) -> tuple[int, list[str]]:
        scanner = FakeScanner()
        scanner.port = 9  # nothing listens there
        data = configuration(tmp_path, scanner, NextHop(port=9), {"lists": lists, "tenants": TENANTS}, lists=door)
        path = tmp_path / "bridge.yml"
        path.write_text(yaml_file.dump(data))
        done = CliRunner().invoke(main, ["check", "-v", "-c", str(path)])
        return done.exit_code, [line for line in done.output.splitlines() if line.startswith(("list ", "lists "))]

    return run


def test_check_finds_missing_lists(check, service):
    """Each is named, with the key that names it; for a usable list, its contents and its risks are shown."""
    _, found = check(section(service), {"block": ["no-such-list", "notes"], "skip_scan": ["allowed-senders"]})
    text = "\n".join(found)
    assert "the API key is accepted" in text
    key = r"\S+bridge\.yml:\d+: listeners\.\S+\.lists"
    assert re.search(rf"^list no-such-list: PROBLEM: {key}\.block: the service has no list with this name", text, re.M)
    assert re.search(rf"^list notes: PROBLEM: {key}\.block: its category at the service is 'notes'", text, re.M)
    assert re.search(rf"^list allowed-senders: WARNING: {key}\.skip_scan: mail with a forged sender would", text, re.M)


def test_check_finds_a_key_that_does_not_work(check, tmp_path):
    """One line, without the key, that says where the key is and how to get another one."""
    with misbehaving(tmp_path, lambda _: http(401, {"error": "unauthorized"})) as server:
        code, found = check(section(server), {"block": ["a"]})
    assert code == 1
    assert len(found) == 1 and "refuses the API key" in found[0]
    assert "(lists.api_key_file): replace it with one that `scanbridge service apikey create NAME` prints" in found[0]


def test_the_embedded_default_has_lists_immediately(tmp_path):
    """The first start creates a private key file; `lists` and the scan use it without any setup."""
    state = tmp_path / "state"
    ports = {name: free_port() for name in ("9081", "10025", "10027", "9082")}
    text = EMBEDDED.format(state=json.dumps(str(state))[1:-1])
    for old, new in ports.items():
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    path = tmp_path / "bridge.yml"
    path.write_text(text)
    for _ in range(2):  # the second start finds the files of the first
        command = [WARM, "run", "-c", str(path)]
        bridge = Bridge(tmp_path, ports["10025"], ports["9082"], command, environment(PYTHONPATH=str(ROOT)))
        try:
            bridge.wait_ready()
            key = state / "api-key"
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            done = scanbridge("lists", "add", "-c", path, "blocked-senders", "bad@sender.example")
            assert done.returncode == 0, done.stderr
            assert key.read_text().strip() not in done.stdout + done.stderr + bridge.log
            until(partial(_refused, bridge), "the list to affect a scan")
        finally:
            bridge.signal()
            bridge.wait()


def _refused(bridge: Bridge) -> bool:
    with bridge.client() as client:
        client.begin(sender=b"<bad@sender.example>")
        return client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"550")


def test_the_embedded_default_configuration_is_valid(tmp_path):
    """Its lists come from its own service."""
    conf = model.embedded(tmp_path)
    assert conf.lists is not None and conf.lists.url == conf.scanner.urls[0]
