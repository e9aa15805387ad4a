"""Haraka, which forwards to the bridge. Installed from npm into the virtual environment, once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

from bridge.testing import until
from tests.chain import dialogue, is_listening
from tests.node_packages import node_and_modules
from tests.recipes.recipe_kit import Case, Service, Setting, agree, mail, play, sent

PACKAGES = Path(__file__).parent / "haraka"


def installed() -> tuple[Path, Path]:
    """The node program and Haraka's directory."""
    node, modules = node_and_modules(PACKAGES, "haraka")
    return node, modules / "Haraka"


class Haraka:
    """Haraka with the recipe's files, as one process."""

    # The recipe leaves it at 30 s. Only this timeout ends an attempt to reach a bridge that is not running.
    forward_timeout_s = 8

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._node, self._program = installed()
        self._home = setting.directory / "haraka"

    def __enter__(self) -> Self:
        setting, config = self._setting, self._home / "config"
        (config / "queue").mkdir(parents=True)
        for file in (setting.files / "config").iterdir():
            text = setting.file(f"config/{file.name}").replace("0.0.0.0:25", f"127.0.0.1:{setting.front}")
            (config / file.name).write_text(self.adapted(text.replace("nodes=cpus", "nodes=0")))
        (config / "queue" / "smtp_forward.timeout").write_text(f"{self.forward_timeout_s}\n")
        with (self._home / "log").open("wb") as log:
            command = [self._node, self._program / "bin" / "haraka", "-c", self._home]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        until(lambda: self._process.poll() is not None or is_listening(setting.front), "Haraka to listen")
        assert self._process.poll() is None, (self._home / "log").read_text()
        return self

    def adapted(self, text: str) -> str:
        """A file of the recipe, with what this test has to change."""
        return text

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)

    def senders(self) -> dict[str, str]:
        """It forwards while the client waits, and queues nothing."""
        assert not list((self._home / "queue").glob("*"))
        return {}

    def flush(self) -> None:
        """There is nothing to retry."""


class Forwarding(Setting):
    """The bridge hands mail to the server that Haraka forwarded to before."""

    def __enter__(self) -> Self:
        self.destination.__enter__()
        config = self.directory / "bridge.yml"
        config.write_text(config.read_text().replace("inside.example.net:25", f"127.0.0.1:{self.destination.port}"))
        self.bridge.start()
        return self


def from_afar(port: int, content: bytes, **envelope: Any) -> tuple[str, str]:
    """The reply ends with Haraka's own id of the mail, after that of the server behind the bridge."""
    to, reply = dialogue(port, content, source="127.0.0.5", helo="far.example", **envelope)
    return to, re.sub(r" \([0-9A-F-]{36}\.\d+\)$", " (...)", reply.replace("as NEXT1", "as ..."))


@pytest.mark.long
def test_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """What the client gets and where the mail is in every case; the scanner knows the client, no byte is changed."""
    with Forwarding("haraka", tmp_path, service) as setting, Haraka(setting) as haraka:
        agree(setting, play(setting, haraka, from_afar))
        assert "client=127.0.0.5 helo=far.example " in setting.bridge.logged(r"(?m)^id=.*$")[0]
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
        odd = mail(Case.DELIVER, "X-Odd:  two").replace(b"Hello", b"odd" + b"x" * 100_000 + b"\r\n\xe4\xf6\r\n.")
        assert from_afar(setting.front, odd, mail=["BODY=8BITMIME"])[1].startswith("250 ")
        assert sent(setting.destination.arrived("X-Odd").content) == odd
