"""Haraka with our plugin, which asks the bridge over MTA Hooks and delivers by itself."""

from __future__ import annotations

import re
import smtplib
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.recipes.recipe_kit import Case, Service, Setting, agree, mail, play, sent
from tests.recipes.test_recipes_haraka import Haraka, from_afar

TOKEN = "a-token-for-haraka"


class Asking(Setting):
    """Haraka forwards to the destination; the bridge has no next hop."""

    def __enter__(self) -> Self:
        (self.directory / "hooks-token").write_text(TOKEN)
        return super().__enter__()


class HarakaWithPlugin(Haraka):
    """The recipe's plugin and token beside its configuration."""

    forward_timeout_s = 30  # it forwards to the destination, which always runs

    def __enter__(self) -> Self:
        setting, home = self._setting, self._home
        (home / "plugins").mkdir(parents=True)
        (home / "config").mkdir()
        (home / "plugins" / "scanbridge.js").write_text(setting.file("plugins/scanbridge.js"))
        (home / "config" / "scanbridge-token").write_text(TOKEN)
        return super().__enter__()

    def adapted(self, text: str) -> str:
        place = f"host=127.0.0.1\nport={self._setting.destination.port}"
        return text.replace("host=inside.example.net\nport=25", place)


def _setting(tmp_path: Path, service: Service) -> Asking:
    setting = Asking("haraka-hooks", tmp_path, service)
    config = tmp_path / "bridge.yml"
    data = yaml.safe_load(config.read_text())
    tenants = [{"uid": "11111111-1111-4111-8111-111111111111", "recipient_domains": ["other.example.net"]}]
    config.write_text(yaml.safe_dump({**data, "tenants": tenants}))
    return setting


def asked(port: int, content: bytes, **envelope: Any) -> tuple[str, str]:
    to, reply = from_afar(port, content, **envelope)
    return to, re.sub(r" \([0-9A-F-]{36}\.\d+\)", " (...)", reply)


@pytest.mark.long
def test_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """What the client gets and where the mail is in every case; the scanner knows the client, no byte is changed."""
    with _setting(tmp_path, service) as setting, HarakaWithPlugin(setting) as haraka:
        agree(setting, play(setting, haraka, asked))
        assert "client=127.0.0.5 helo=far.example " in setting.bridge.logged(r"(?m)^id=.*$")[0]
        arrived = setting.destination.arrived(Case.DELIVER.marker)
        assert sent(arrived.content) == mail(Case.DELIVER)
        assert b"\r\nX-Scan-Decision: deliver\r\n" in arrived.content
        _odd_mail(setting)
        _forged_fields(setting)
        _two_tenants(setting)
        _restarted_bridge(setting)


def _odd_mail(setting: Setting) -> None:
    """Long lines, bytes of no charset and dots at the beginning of a line pass unchanged; so do 5 MB."""
    odd = mail(Case.DELIVER, "X-Odd:  two").replace(b"Hello", b"odd" + b"x" * 100_000 + b"\r\n\xe4\xf6\r\n.\r\n..a")
    odd += b"0123456789abcdef\r\n" * 300_000
    assert asked(setting.front, odd, mail=["BODY=8BITMIME"])[1].startswith("250 ")
    assert sent(setting.destination.arrived("X-Odd").content) == odd


def _forged_fields(setting: Setting) -> None:
    """Fields that look like ours are removed, and only those."""
    forged = mail(Case.DELIVER, "X-Scan-Decision: forged", "X-Keep: 1", "x-scan-other: forged\r\n folded", "X-Keep: 2")
    assert asked(setting.front, forged)[1].startswith("250 ")
    content = setting.destination.arrived("X-Keep").content
    assert b"forged" not in content and b"folded" not in content
    assert re.findall(rb"(?m)^X-Keep: (\d)\r$", content) == [b"1", b"2"]


def _two_tenants(setting: Setting) -> None:
    """A recipient who cannot share the mail is deferred at RCPT; the others get it."""
    with smtplib.SMTP("127.0.0.1", setting.front, timeout=60) as client:
        refused = client.sendmail(
            "a@example.org", ["b@example.net", "b@other.example.net"], mail(Case.DELIVER, "X-Two: y")
        )
    assert refused["b@other.example.net"][1].startswith(b"4.5.3 ") and len(refused) == 1
    assert setting.destination.arrived("X-Two").commands


def _restarted_bridge(setting: Setting) -> None:
    """The registration is still valid, because the token is the same."""
    setting.bridge.kill()
    setting.bridge.start()
    assert asked(setting.front, mail(Case.DELIVER, "X-Again: y"))[1].startswith("250 ")
