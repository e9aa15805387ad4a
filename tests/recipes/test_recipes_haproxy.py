"""HAProxy between a mail server and the bridges: PROXY v2."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bridge.testing import SmtpClient, free_port, running_bridge, until
from tests.chain import dialogue, is_listening
from tests.recipes.recipe_kit import DEPLOY, Case, Service, Setting, agree, mail, play, sent
from tests.recipes.test_recipes_postfix import PostfixOf
from tests.requirements import find, need


@contextmanager
def haproxy(directory: Path, front: int, *bridges: int) -> Iterator[None]:
    """HAProxy with the recipe's configuration, on these ports."""
    need("haproxy")
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    text = text.replace(":10024", f":{front}")
    for number, port in enumerate(bridges, 1):
        text = text.replace(f"192.0.2.1{number}:10025", f"127.0.0.1:{port}")
    assert "192.0.2." not in text
    config, log = directory / "haproxy.cfg", directory / "haproxy.log"
    config.write_text(text)
    with log.open("wb") as output:
        process = subprocess.Popen([str(find("haproxy")), "-db", "-f", str(config)], stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or is_listening(front), "HAProxy to listen")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)


class Behind(Setting):
    """The recipe's files, all on this machine."""

    def __init__(self, directory: Path, service: Service) -> None:
        self.proxy = free_port()
        super().__init__("haproxy", directory, service)

    def file(self, name: str, recipe: str = "") -> str:
        text = re.sub(r"192\.0\.2\.1\d:", "127.0.0.1:", super().file(name, recipe)).replace(
            "192.0.2.0/24", "127.0.0.0/8"
        )
        return text.replace(":10024", f":{self.proxy}")


def test_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """With one of two bridges always down, mail passes as usual; XFORWARD passes; no byte is changed."""
    need("postfix", root=True)
    with ExitStack() as stack:
        setting = stack.enter_context(Behind(tmp_path, service))
        stack.enter_context(haproxy(tmp_path, setting.proxy, setting.port("10025"), free_port()))
        postfix = stack.enter_context(PostfixOf(setting))
        agree(setting, play(setting, postfix, partial(dialogue, xclient="ADDR=192.0.2.7", helo="far.example")))
        assert "client=192.0.2.7 helo=far.example " in setting.bridge.logged(r"(?m)^id=.*$")[0]
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)


TRUSTED = {"proxy_protocol": True, "trusted_clients": ["127.0.0.1", "127.0.0.5"]}


def test_the_scanner_gets_the_address_of_the_mail_server(tmp_path: Path) -> None:
    """PROXY v2 brings it; an untrusted client is refused through HAProxy too, and without it."""
    front = free_port()
    with running_bridge(tmp_path, **TRUSTED) as bridge, haproxy(tmp_path, front, bridge.port, free_port()):
        with SmtpClient(front, "127.0.0.5") as client:
            client.open(b"EHLO mx.example")
            assert client.mail().startswith(b"250 ")
        border = bridge.scanner.submissions[0].parameters["borderMtaData"]
        assert (border["remoteAddress"], border["senderHelo"]) == ("127.0.0.5", "mx.example")
        with SmtpClient(front, "127.0.0.6") as client:
            client.open()
            assert client.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"550 5.7.1 ")
        with SmtpClient(bridge.port, "127.0.0.5") as client:
            client.send(b"EHLO mx.example\r\n")
            assert client.is_cut()


def test_mail_goes_on_while_one_bridge_is_up_and_ends_when_none_is(tmp_path: Path) -> None:
    """HAProxy skips a stopped bridge immediately; without any, it closes the connection silently."""
    front, places = free_port(), [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        for place in places:
            place.mkdir()
        bridges = [stack.enter_context(running_bridge(place, **TRUSTED)) for place in places]
        stack.enter_context(haproxy(tmp_path, front, *(bridge.port for bridge in bridges)))

        def send(count: int) -> list[int]:
            before = [len(bridge.next_hop.mails) for bridge in bridges]
            for _ in range(count):
                with SmtpClient(front) as client:
                    client.open()
                    assert client.mail().startswith(b"250 ")
            return [len(bridge.next_hop.mails) - was for bridge, was in zip(bridges, before, strict=True)]

        assert sum(send(6)) == 6
        bridges[0].background.run(bridges[0].daemon.stop(1.0))
        assert send(4) == [0, 4]
        bridges[1].background.run(bridges[1].daemon.stop(1.0))
        with socket.create_connection(("127.0.0.1", front), timeout=60) as sock, pytest.raises(ConnectionError):
            if not sock.recv(100):
                raise ConnectionResetError
