"""The documents say what is true: generated pages are up to date, commands exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import click
import pytest

from bridge.cli import main
from bridge.config.model import EMBEDDED, Config
from bridge.daemon.daemon import Daemon
from bridge.runtime import yaml_file
from bridge.testing import Background, free_port
from tests.requirements import need

ROOT = Path(__file__).parent.parent
MADE = ("build", "dist")  # and whatever begins with a dot
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in MADE for part in path.relative_to(ROOT).parts)
)
MENTIONED = re.compile(r"(?:^|[`/ ])scanbridge ([a-z]+)(?: ([a-z]+))?(?: ([a-z]+))?(?=[` \n])", re.MULTILINE)
CALL = re.compile(r"(?:^|[`/|&;(] ?)scanbridge ([^|&;#)`]+)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def program(name: str):
    """One of those in docs/ that make pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated():
    return program("generate").pages()


@pytest.mark.parametrize("name", ["configuration.md", "metrics.md"])
def test_generated_page_is_up_to_date(name):
    """`make docs` would change nothing."""
    assert (ROOT / "docs" / name).read_text() == generated()[ROOT / "docs" / name], "run `make docs`"


def test_page_about_http_is_up_to_date():
    """`make docs` would change nothing here, either."""
    assert (ROOT / "docs" / "http-api.md").read_text() == program("httppage").page(), "run `make docs`"


def test_pages_that_are_generated_are_the_ones_tried_here():
    assert {path.name for path in generated()} == {"configuration.md", "metrics.md"}


def code(text: str) -> str:
    """What is set as code: blocks, and words between back quotes."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_a_page_exist(page):
    """Every `scanbridge ...` and every `make ...` that a page shows."""
    text = code(page.read_text())
    for words in MENTIONED.findall(text):
        command: click.Command | None = main
        for word in words:
            if not word or not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"scanbridge {' '.join(words)}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"(?:^|`)make ([a-z ]+?)(?:`|$| *#)", text, re.MULTILINE):
        assert set(line.split()) <= targets, f"make {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_in_a_page_exist(page):
    """Every `--option` behind a `scanbridge ...` that a page shows, in a block or in a sentence."""
    for line in code(page.read_text()).splitlines():
        for call in CALL.findall(line):
            command, options = called(call.split())
            known = {
                name for one in command.get_params(click.Context(command)) for name in one.opts + one.secondary_opts
            }
            assert options <= known, f"scanbridge {call}"


def called(words: list[str]) -> tuple[click.Command, set[str]]:
    """The command that these words name, and the options behind it."""
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group) or not (found := command.get_command(click.Context(command), word)):
            break
        command = found
    return command, {match[0] for word in words if (match := re.match(r"--[a-z][a-z-]+", word))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    """Files and headings; other people's sites are not asked."""
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page):
    """A page that says what holds a promise says where to look."""
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_is_in_the_navigation_of_the_site(page):
    """Else nobody finds it (`make site` would say so too)."""
    assert re.search(rf": {re.escape(str(page.relative_to(ROOT)))}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["flow.md", "way.svg"])
def test_code_that_the_way_of_a_mail_names_exists(name):
    """Page and picture lead a new developer to files that are there."""
    text = (ROOT / "docs" / name).read_text()
    paths = {f"bridge/{path}" for path in re.findall(r'class="home">([^<]+)<', text)}
    paths |= set(re.findall(r"bridge/[\w/]+(?:\.py|/)", text))
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists(), path


def anchors(text: str) -> set[str]:
    """As forges make them: small letters, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", sorted(ROOT.glob("deploy/*/bridge.yml")), ids=lambda path: path.parent.name)
def test_configuration_of_a_recipe_is_valid(path):
    """The files in deploy/ can be used as they are."""
    assert yaml_file.load(path, Config).listeners


def test_example_in_the_readme_is_a_valid_configuration(tmp_path):
    (example,) = re.findall(r"```yaml\n(scanner:.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert yaml_file.load(tmp_path / "bridge.yml", Config, example).listeners


# The quick start, for real


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded default on other ports; where it keeps its state, and the port for mail."""
    state = tmp_path_factory.mktemp("state")
    text, ports = EMBEDDED.format(state=state), {}
    for port in ("9081", "10025", "10027", "9082"):
        ports[port] = str(free_port())
        text = text.replace(f":{port}", f":{ports[port]}")
    background = Background()
    daemon = background.run(Daemon.start(yaml_file.load(state / "bridge.yml", Config, text)))
    try:
        yield state, ports["10025"]
    finally:
        background.run(daemon.stop(2.0))
        background.close()


def quick_start(word: str, without: str = "\n") -> str:
    """The line of the README's quick start with this word in it."""
    (line,) = [
        line
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        for line in block.splitlines()
        if word in line and without not in line
    ]
    return line


def run(line: str, port: str) -> str:
    line = line.replace("10025", port)
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", ["swaks", "python3"])
def test_quick_start_delivers(embedded, program):
    """A mail lies in the Maildir, with our fields."""
    need(program)
    state, port = embedded
    before = set(state.glob("Maildir/new/*"))
    run(quick_start("swaks", without="--body") if program == "swaks" else quick_start("smtplib"), port)
    (mail,) = set(state.glob("Maildir/new/*")) - before
    assert re.search(rb"^X-Scan-Decision: deliver\r?$", mail.read_bytes(), re.MULTILINE)


def test_quick_start_refuses_gtube(embedded):
    need("swaks")
    _, port = embedded
    assert "<** 550 5.7.1 " in run(quick_start("GTUBE"), port)


def test_quick_start_quarantines_eicar(embedded):
    need("swaks")
    state, port = embedded
    assert "250 2.0.0 Ok: queued as" in run(quick_start("EICAR"), port)
    assert len(list(state.glob("quarantine/*.eml"))) == 1
