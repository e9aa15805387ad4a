"""The documents as a site: built with --strict, every page present, nothing loaded from other sites."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.console.browser_kit import NARROW, chromium

ROOT = Path(__file__).parent.parent


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make site` into another directory. Not `--quiet`: `--strict` counts only warnings that are printed."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}


def test_the_site_has_recipes_and_root_pages(site):
    """Pages outside of docs/ are at their own path, with the files next to them."""
    for name in ("index.html", "docs/understand/flow/index.html", "SECURITY/index.html", "deploy/exim/exim.conf"):
        assert (site / name).is_file(), name
    for recipe in ROOT.glob("deploy/*/README.md"):
        assert (site / "deploy" / recipe.parent.name / "index.html").is_file(), recipe


@pytest.mark.long
def test_a_page_without_navigation_and_a_broken_link_fail(tmp_path):
    """Both together in a copy of the documents: the strict build names them."""
    for name in ("README.md", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "deploy", "tools", *(f"tests/{page.parent.name}" for page in ROOT.glob("tests/*/README.md"))):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "bridge/console/static", tmp_path / "bridge/console/static")
    (tmp_path / "docs" / "hidden.md").write_text(
        "# Hidden\n\n[gone](gone.md) [no such place](understand/flow.md#nowhere)\n"
    )
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert re.search(r'not included in the "nav" configuration:\n +- docs/hidden\.md', said), said
    assert "'gone.md'" in said and "'understand/flow.md#nowhere'" in said


def test_nothing_is_loaded_from_other_sites(site):
    """No other site learns what a reader reads."""
    for name, text in pages(site).items():
        loaded = re.findall(r"""<(?:script|img|iframe)[^>]*src="(https?:[^"]+)|<link[^>]*href="(https?:[^"]+)""", text)
        assert not loaded, name


def test_lists_and_tables_are_rendered(site):
    """Python-Markdown differs from the Markdown of code forges: what it does not understand stays in the text."""
    for name, text in pages(site).items():
        prose = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", text, flags=re.DOTALL)
        left = re.findall(r"```|^\|.*\|$|^- .*$|\]\([^)]*\)|<p>(?:[-|]|\d+\.) .*", prose, re.MULTILINE)
        assert not left, name


@pytest.mark.long
def test_a_reader_searches_and_leafs_through_the_site(site):
    """In a browser: the search finds a page, and on a narrow screen the list of pages does not hide the page."""
    serve = partial(SimpleHTTPRequestHandler, directory=str(site))
    with chromium() as browser, ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context(base_url=f"http://127.0.0.1:{server.server_port}", viewport=NARROW)
        page = context.new_page()
        page.goto("/")
        assert not page.get_by_role("link", name="Runbooks", exact=True).is_visible()
        page.get_by_text("Pages", exact=True).click()
        page.get_by_role("navigation").get_by_text("Operate", exact=True).click()
        page.get_by_role("link", name="Runbooks", exact=True).click()
        assert page.get_by_role("heading", level=1).inner_text().startswith("Runbooks")
        page.get_by_role("searchbox").fill("Standard Webhooks")
        page.get_by_role("searchbox").press("Enter")
        page.locator("#mkdocs-search-results").get_by_text("webhook").first.wait_for(timeout=60_000)
        server.shutdown()
