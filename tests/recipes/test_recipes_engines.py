"""The recipes with another engine behind the included service: ICAP and SpamAssassin, from Postfix to the engine."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from io import BytesIO
from pathlib import Path

from bridge.testing import TOKEN
from tests.chain import Program, dialogue, free_port
from tests.recipes.recipe_kit import DEPLOY, EICAR, Setting
from tests.recipes.test_recipes_postfix import PostfixOf
from tests.requirements import need
from tests.server_program import ServerProgram
from tests.service.conftest import clamd, running_c_icap, spamd  # noqa: F401 (fixtures)


class Engine:
    """The service of a recipe, on private ports."""

    def __init__(self, recipe: str, directory: Path, server: ServerProgram, default_port: str) -> None:
        self.port = free_port()
        text = (DEPLOY / recipe / "service.yml").read_text()
        assert text.count(f":{default_port}") == 1
        text = text.replace(f":{default_port}", f":{server.port}")
        directory.mkdir()
        (directory / "service.yml").write_text(f"listen: 127.0.0.1:{self.port}\n{text}")
        (directory / "api-token").write_text(TOKEN)
        (directory / "api-token").chmod(0o600)
        self.program = Program(directory, [self.port], "service", "-c", str(directory / "service.yml"))


def letter(marker: str, text: bytes, file: bytes = b"") -> bytes:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = marker, "a@example.org", "b@example.net"
    mail["Message-ID"] = f"<{marker}@example.org>"
    mail.set_content(text.decode())
    if file:
        mail.add_attachment(file, maintype="application", subtype="zip", filename="scan.zip")
    return mail.as_bytes().replace(b"\n", b"\r\n")


def eicar_in_a_zip() -> bytes:
    place = BytesIO()
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("eicar.com", EICAR.rstrip())
    return place.getvalue()


@contextmanager
def behind_postfix(engine: Engine, directory: Path) -> Iterator[Setting]:
    engine.program.start()
    try:
        with Setting("postfix-proxy", directory, engine) as setting, PostfixOf(setting):
            yield setting
    finally:
        engine.program.kill()


def test_icap_recipe_names_what_the_scanner_found(tmp_path: Path, clamd: ServerProgram) -> None:  # noqa: F811
    """A clean mail arrives, the EICAR file does not, and without the scanner mail stays with the sender."""
    need("postfix", root=True)
    with running_c_icap(clamd.port) as c_icap:
        engine = Engine("icap", tmp_path / "service", c_icap, "1344")
        with behind_postfix(engine, tmp_path) as setting:
            _, reply = dialogue(setting.front, letter("clean", b"Hello\r\n"), sender="clean@example.org")
            assert reply.startswith("250"), reply
            setting.destination.arrived("Subject: clean")
            dialogue(setting.front, letter("virus", b"See scan.zip\r\n", eicar_in_a_zip()), sender="v@example.org")
            line = setting.bridge.logged(r"(?m)^id=.*from=<v@.*$")[0]
            assert "malware:" in line and "eicar" in line.lower(), line
            assert not setting.destination.find("Subject: virus")
            c_icap.kill(0.2)
            _, reply = dialogue(setting.front, letter("later", b"Hello again\r\n"), sender="later@example.org")
            assert reply.startswith("451"), reply


def test_spamassassin_recipe_asks_spamd_without_amavis(tmp_path: Path, spamd: ServerProgram) -> None:  # noqa: F811
    """A mail with a clean text arrives; one that reaches SpamAssassin's own threshold is quarantined."""
    need("postfix", root=True)
    engine = Engine("spamassassin", tmp_path / "service", spamd, "783")
    with behind_postfix(engine, tmp_path) as setting:
        assert dialogue(setting.front, letter("clean", b"Hello\r\n"), sender="clean@example.org")[1].startswith("250")
        setting.destination.arrived("Subject: clean")
        dialogue(setting.front, letter("spam", b"xyzzy and plugh\r\n"), sender="spam@example.org")
        line = setting.bridge.logged(r"(?m)^id=.*from=<spam@.*$")[0]
        assert "spamassassin:LAB_WORD" in line and "spamassassin:spam" in line
        assert not setting.destination.find("Subject: spam")
