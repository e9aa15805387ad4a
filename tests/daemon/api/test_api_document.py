"""The OpenAPI document of the HTTP API: shipped, served, complete, and correct (schemathesis tries to refute it)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.daemon.http_api.document import document
from bridge.daemon.http_api.failures import ERRORS
from bridge.history.entry import Kind, MailEntry, Row
from tests.daemon.api.api_kit import ALL, ask, bridge, mails, send
from tools import api_page

ROOT = Path(__file__).parents[3]


def schemathesis(directory: Path, url: str, document: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", document, "--url", url, "-H",
        f"Authorization: Bearer {ALL}", "--seed", "1", "--no-color", *options,
    ]  # fmt: skip
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(
    "options",
    [
        ("--phases", "fuzzing,stateful", "--max-examples", "2"),
        pytest.param(("--max-examples", "50"), marks=pytest.mark.long),  # and the limits of every parameter
    ],
    ids=["some", "all"],
)
def test_schemathesis_finds_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Valid and invalid requests generated from the document are answered as documented."""
    with bridge(tmp_path) as running:
        for number in range(3):
            send(running, decision=("deliver", "quarantine", "bounce")[number])
        mails(running.admin_port, 3)
        url = f"http://127.0.0.1:{running.admin_port}"
        done = schemathesis(tmp_path, url, f"{url}/api/v1/openapi.json", *options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_shipped_document_is_the_served_one(tmp_path: Path) -> None:
    """docs/reference/api.json is up to date (`make docs` writes it), and needs no token."""
    with bridge(tmp_path) as running:
        served = ask(running.admin_port, "/api/v1/openapi.json", token=None)
    assert served.status == 200
    assert served.json == document()
    assert api_page.DOCUMENT.read_text() == api_page.document_text()


def test_every_error_in_the_code_is_documented() -> None:
    """Clients can only rely on an `error` that is in the document; no documented one is invented."""
    used = {"invalid_parameter"}
    for path in (ROOT / "bridge" / "daemon" / "http_api").glob("*.py"):
        used |= set(re.findall(r"ApiError\(\s*\"(\w+)\"", path.read_text()))
    server = (ROOT / "bridge" / "runtime" / "http_server.py").read_text()
    used |= set(re.findall(r"(?:\.refuse\(|_excess = \()\d+, \"(\w+)\"", server))
    assert used == set(ERRORS)


def test_every_column_of_the_history_is_documented() -> None:
    """A new column must be described before it is shown."""
    numbers = {"at": 1.0, "size": 1, "wait_s": 1.0, "scan_s": 1.0, "relay_s": 1.0, "mails": 2}
    row = Row(**{name: numbers.get(name, name) for name in Row._fields})  # type: ignore[arg-type]
    entry = MailEntry(row, Kind(*Kind._fields))
    assert len(entry.to_dict()) > 30
    assert entry.to_dict().keys() <= document()["components"]["schemas"]["Mail"]["properties"].keys()
