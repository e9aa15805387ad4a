"""The metrics of a cluster that alerts, dashboards and autoscaling name: each is served by a real node."""

from __future__ import annotations

import http.client
import re
from pathlib import Path

import pytest

from bridge.testing import free_port, until
from tests.nats_kit import nats_server
from tests.service.service_kit import mail, service, wait_for
from tests.service.test_service_queue_outages import GREEN, configuration, worker_process

ROOT = Path(__file__).parents[2]
_SUFFIX = re.compile(r"_(bucket|count|sum|created)$")
_NAME = re.compile(r"\bscanservice_\w+")


def page_of(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def served(page: str) -> set[str]:
    return {_SUFFIX.sub("", line.split()[2]) for line in page.splitlines() if line.startswith("# TYPE ")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What an API node and a worker serve after a mail."""
    directory, port = tmp_path_factory.mktemp("queue"), free_port()
    with nats_server(directory, "-js", "-sd", str(directory / "store")) as nats:
        text = configuration([nats.url])
        worker_text = f"{text}worker: {{listen: '127.0.0.1:{port}'}}\n"
        with service(directory, text) as front, worker_process(directory, worker_text):
            wait_for(lambda: front.status().json == GREEN)
            assert front.submit(mail()).status == 200
            api = front.request("GET", "/metrics").body.decode()
            until(lambda: "scanservice_queue_connected" in page_of(port), "the worker's metrics")
            return {"API node": served(api), "worker": served(page_of(port))}


def test_every_metric_of_the_service_that_deploy_names_exists(pages: dict[str, set[str]]) -> None:
    """`or vector(0)` hid a misspelled name: its panel showed 0, and its alert never fired."""
    named: dict[str, set[str]] = {}
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file() and path.suffix in (".yml", ".yaml", ".json", ".md", ".conf", ".cfg"):
            for name in _NAME.findall(path.read_text()):
                named.setdefault(_SUFFIX.sub("", name), set()).add(path.name)
    assert {"cluster-alerts.yml", "dashboard.json", "autoscaling.yaml"} <= set().union(*named.values())
    everywhere = pages["API node"] | pages["worker"]
    unknown = {name: files for name, files in named.items() if not {name, name.removesuffix("_total")} & everywhere}
    assert not unknown


def test_the_page_about_clusters_says_which_node_has_a_metric(pages: dict[str, set[str]]) -> None:
    """And an alert that expects it from a Prometheus job names the right one."""
    rows = re.findall(
        r"^\| (`scanservice_.*?) \| (API node|worker) \|", (ROOT / "docs/operate/cluster.md").read_text(), re.M
    )
    assert len(rows) >= 5
    for names, where in rows:
        for name in re.findall(r"scanservice_\w+", names):
            assert {name, name.removesuffix("_total")} & pages[where], f"{name} at a {where}"
    jobs = re.findall(r"(scanservice_\w+)\{job=\"scanbridge-(api|worker)\"",
                      (ROOT / "deploy/mixin/cluster-alerts_test.yml").read_text())  # fmt: skip
    for name, job in jobs:
        assert name in pages["API node" if job == "api" else "worker"]
