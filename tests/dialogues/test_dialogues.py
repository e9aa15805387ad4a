"""Runs every dialogue in this directory against a real listener. README.md describes the format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.testing import NextHop, RunningBridge, SmtpClient, answer, result, running_bridge

HERE = Path(__file__).parent
LINE = re.compile(r"([CSNA])(?:\*(\d+))?:(?: (.*))?")


@dataclass
class Dialogue:
    """One file: its settings, and its lines as (kind, text)."""

    settings: dict[str, Any] = field(default_factory=dict)
    steps: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Dialogue:
        dialogue = cls()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.startswith("#"):
                if setting := re.fullmatch(r"#(\w+): (.*)", line):
                    dialogue.settings[setting.group(1)] = yaml.safe_load(setting.group(2))
            elif line:
                match = LINE.fullmatch(line)
                assert match is not None, f"{path.name}:{number}: expected a C, S, N or A line"
                dialogue.steps += [(match.group(1), match.group(3) or "")] * int(match.group(2) or 1)
        return dialogue


def run(dialogue: Dialogue, bridge: RunningBridge) -> None:
    waiting = b""
    with bridge.client(dialogue.settings.get("from", "127.0.0.1")) as client:
        for kind, text in dialogue.steps:
            if kind == "C":
                waiting += said(text)
                continue
            if waiting:
                client.send(waiting)
                waiting = b""
            if kind == "S":
                assert_answered(client, text)
            elif kind == "A":
                assert_told(bridge, json.loads(text))
    assert not waiting, "the client's last lines have no S line after them"
    assert_handed_on(bridge, [text for kind, text in dialogue.steps if kind == "N"])


def said(text: str) -> bytes:
    end = b"\r\n"
    if text.endswith("\\") and not text.endswith("\\\\"):
        text, end = text[:-1], b""
    return text.encode().decode("unicode_escape").encode("latin-1") + end


def assert_answered(client: SmtpClient, text: str) -> None:
    line = client.line().decode("latin-1")
    if text == "<closed>":
        assert line == "", "expected the connection to be closed"
    else:
        assert matches(text, line), f"expected {text!r}, got {line!r}"


def assert_told(bridge: RunningBridge, expected: dict[str, Any]) -> None:
    border = bridge.scanner.submissions[-1].parameters["borderMtaData"]
    assert {name: border.get(name) for name in expected} == expected


def assert_handed_on(bridge: RunningBridge, expected: list[str]) -> None:
    if expected == ["nothing"]:
        assert bridge.next_hop.mails == []
    elif expected:
        commands = [line.decode() for line in bridge.next_hop.mails[-1].commands if not line.startswith(b"EHLO")]
        assert len(commands) == len(expected), commands
        for text, line in zip(expected, commands, strict=True):
            assert matches(text, line), f"expected {text!r}, got {line!r}"


def matches(text: str, line: str) -> bool:
    if len(text) > 1 and text.startswith("/") and text.endswith("/"):
        return re.fullmatch(text[1:-1], line) is not None
    return text == line


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], RunningBridge]]:
    """Returns a bridge with these settings; dialogues with equal settings share one."""
    running: dict[str, RunningBridge] = {}
    with ExitStack() as stack:

        def get(settings: dict[str, Any]) -> RunningBridge:
            config, listener = settings.get("config"), settings.get("listener", {})
            extensions = tuple(settings.get("extensions", NextHop.extensions))
            key = json.dumps([config, listener, extensions])
            if key not in running:
                directory = tmp_path_factory.mktemp("bridge")
                running[key] = stack.enter_context(running_bridge(directory, config, **listener))
                running[key].next_hop.extensions = extensions
            return running[key]

        yield get


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.txt")))
def test_dialogue(name: str, bridges: Callable[[dict[str, Any]], RunningBridge]) -> None:
    """The bridge sends the replies in the file."""
    dialogue = Dialogue.read(HERE / f"{name}.txt")
    bridge = bridges(dialogue.settings)
    bridge.forget()
    bridge.scanner.reply = answer(200, result(dialogue.settings.get("decision", "deliver")))
    run(dialogue, bridge)
