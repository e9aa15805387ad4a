"""The OpenAPI document: shipped, served, readable, and correct (schemathesis tries to prove otherwise)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.api.scanning import SUBMIT_PATH
from bridge.service import openapi
from bridge.service.health import is_local
from bridge.service.lists.store import PREDEFINED
from bridge.service.metrics import ServiceMetrics
from tests.service.service_kit import CONFIG, TOKEN, Lists, service, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def running(tmp_path, database):
    with service(tmp_path, CONFIG.replace("sqlite:///service.sqlite", database), with_key=True) as running:
        yield running


def _schemathesis(directory: Path, url: str, schema: str, authorization: str, *options: str) -> None:
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", schema, "--url", url, "-H",
        f"Authorization: {authorization}", "--seed", "1", "--no-color", *options,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("database", "options"),
    [
        ("sqlite", ("--phases", "fuzzing,stateful", "--max-examples", "2")),
        pytest.param("sqlite", ("--max-examples", "50"), marks=pytest.mark.long),  # and the limits of every parameter
        pytest.param("postgresql", ("--max-examples", "8"), marks=pytest.mark.long),
    ],
    indirect=["database"],
    ids=["some", "all", "postgresql"],
)
def test_schemathesis_finds_nothing(running, tmp_path, options):
    """Valid and invalid requests generated from the document are answered as documented."""
    lists = Lists(running)
    wait_for(lambda: lists.call("getLists", {}).status == 200)
    url = f"http://127.0.0.1:{running.port}"
    scanning, listing = (*options, "--exclude-path-regex", "^/api"), (*options, "--include-path-regex", "^/api")
    _schemathesis(tmp_path, url, f"{url}/openapi.json", f"Bearer {TOKEN}", *scanning)
    if "--phases" not in options:
        _schemathesis(tmp_path, url, f"{url}/openapi.json", f"apikey {lists.key}", *listing)
    # Again, or in the short form only, with the names of real lists, to get past 404 more often.
    named = openapi.document()
    named["components"]["schemas"]["ListName"] = {"enum": [definition.name for definition in PREDEFINED]}
    (tmp_path / "named.json").write_text(json.dumps(named))
    _schemathesis(tmp_path, url, str(tmp_path / "named.json"), f"apikey {lists.key}", *listing)


def test_the_shipped_document_is_the_served_one(tmp_path):
    """docs/reference/openapi.json is up to date (`make docs` writes it)."""
    shipped = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    assert shipped == openapi.document()
    with service(tmp_path) as running:
        answer = running.request("GET", "/openapi.json")
        assert (answer.json, answer.headers["Content-Type"]) == (shipped, "application/json")


def test_the_page_loads_nothing_from_elsewhere(tmp_path):
    """The page can be read on a machine without any network."""
    with service(tmp_path) as running:
        answer = running.request("GET", "/docs")
    text = answer.body.decode()
    assert answer.status == 200
    assert "/v1/messageQueue/submitEmail" in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|<script|@import|url\(", text)


def test_every_error_in_the_code_is_documented():
    """Clients can only rely on an `error` that is in the document."""
    used = set()
    for path in (ROOT / "bridge" / "service").rglob("*.py"):
        used |= set(re.findall(r"(?:Refused\(\s*\d+,|Failure\()\s*\"(\w+)\"", path.read_text()))
    server = (ROOT / "bridge" / "runtime" / "http_server.py").read_text()
    used |= (by_server := set(re.findall(r"\.refuse\(\d+, \"(\w+)\"", server)))
    assert used and by_server
    assert used <= openapi.ERRORS.keys()


def test_a_site_whose_name_points_here_cannot_read_the_metrics(tmp_path):
    """Any host name was accepted, so a site could make a browser on this machine read them (DNS rebinding)."""
    with service(tmp_path, CONFIG + "metrics_hosts: [Scan.Example.org]\n") as running:

        def metrics(host):
            return running.request("GET", "/metrics", headers={"Host": host})

        for host in ("127.0.0.1:9081", "localhost:9081", "[::1]", "prometheus", "scan.example.org"):
            assert metrics(host).status == 200, host
        for host in ("evil.example", "evil.example:9081", "localhost.evil.example"):
            assert (metrics(host).status, metrics(host).json["error"]) == (421, "wrong_host"), host
        assert running.request("GET", "/livez", headers={"Host": "evil.example"}).status == 200


def test_every_status_of_a_refused_scan_is_counted_from_zero():
    """Otherwise an alert on the increase of a counter misses the first refusal with this status."""
    answers = openapi.document()["paths"][SUBMIT_PATH]["post"]["responses"]
    text = ServiceMetrics().text().decode()
    shown = set(re.findall(r'scanservice_refused_total\{status="([0-9]+)"\} 0\.0', text))
    assert shown == answers.keys() - {"200", "default"}


def test_the_address_of_this_machine_in_the_network_is_not_local():
    """A browser on this machine would read the metrics for a site whose name points at that address."""
    assert is_local({"client": ("127.0.0.1", 5), "server": ("127.0.0.1", 9081)})
    assert not is_local({"client": ("192.0.2.2", 5), "server": ("192.0.2.2", 9081)})


def test_health_and_metrics(tmp_path):
    """Operators see that the service is alive and ready, and what it has done."""
    with service(tmp_path) as running:
        assert running.request("GET", "/livez").status == 200
        assert running.request("GET", "/readyz").json == {"status": "ok"}
        running.submit(b"x")
        running.submit(b"x", token="wrong" * 10)
        text = running.request("GET", "/metrics").body.decode()
    assert 'scanservice_decisions_total{decision="deliver"} 1.0' in text
    assert 'scanservice_decisions_total{decision="bounce"} 0.0' in text
    assert 'scanservice_refused_total{status="401"} 1.0' in text
    assert "scanservice_in_processing 0.0" in text
