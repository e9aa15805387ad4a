"""The mixin: every alert is tested and explained, every query of the dashboard returns data."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest

from bridge.runtime import yaml_file
from tests.daemon.process_kit import until
from tests.observe.observe_kit import MIXIN, ROOT, Scene, promtool


def rules(name: str) -> dict[str, Any]:
    return dict(yaml_file.read(MIXIN / name, (MIXIN / name).read_text())[0])


def alerts_of(name: str) -> list[dict[str, Any]]:
    return [rule for group in rules(name)["groups"] for rule in group["rules"]]


ALERTS, CLUSTER_ALERTS = alerts_of("alerts.yml"), alerts_of("cluster-alerts.yml")
TESTS, CLUSTER_TESTS = rules("alerts_test.yml")["tests"], rules("cluster-alerts_test.yml")["tests"]
DASHBOARD: dict[str, Any] = json.loads((MIXIN / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_alerts_and_their_tests_pass() -> None:
    """promtool accepts the rules, and their tests pass."""
    for name in ("alerts", "cluster-alerts"):
        promtool("check", "rules", MIXIN / f"{name}.yml")
        promtool("test", "rules", MIXIN / f"{name}_test.yml")


@pytest.mark.parametrize("alert", ALERTS + CLUSTER_ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(alert) -> None:
    for story, wanted in (("fires", 1), ("silent", 0)):
        tests = [test for test in TESTS + CLUSTER_TESTS if test["name"] == f"{alert['alert']} {story}"]
        assert tests
        for test in tests:
            (asked,) = test["promql_expr_test"]
            assert f'ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}}' in asked["expr"]
            assert len(asked["exp_samples"]) == wanted


@pytest.mark.parametrize("alert", ALERTS + CLUSTER_ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_names_the_problem_and_its_runbook_section(alert) -> None:
    """The section says what the alert means, what to look at and what to do."""
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert notes["summary"] and notes["description"].endswith(".")
    page, _, anchor = notes["runbook_url"].partition("#")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))
    (section,) = [text for title, text in sections.items() if title.lower() == anchor]
    for word in ("**It means**", "**Look at**", "**What to do**"):
        assert word in section, f"{anchor}: {word}"


def test_the_runbook_has_no_section_without_an_alert() -> None:
    titles = set(
        re.findall(r"^## (Scanbridge\w+)$", (ROOT / "docs" / "operate" / "runbooks.md").read_text(), re.MULTILINE)
    )
    assert {title.lower() for title in titles} == {
        alert["annotations"]["runbook_url"].partition("#")[2] for alert in ALERTS + CLUSTER_ALERTS
    }


def test_dashboard_is_up_to_date() -> None:
    """`make docs` would change nothing."""
    spec = importlib.util.spec_from_file_location("dashboard", MIXIN / "dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (MIXIN / "dashboard.json").read_text() == module.text(), "run `make docs`"


def test_dashboard_is_valid_for_grafana() -> None:
    """Ids are unique, no panels overlap, each panel has a data source, a unit and queries; the variables exist."""
    assert DASHBOARD["uid"] == "scanbridge" and DASHBOARD["schemaVersion"] >= 36
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}" and panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in ("none", "ops", "s", "bytes", "Bps", "percentunit")


def substituted(expression: str) -> str:
    """With the values that Grafana would substitute."""
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".+")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']} {panel['title']}")
def test_every_query_of_the_dashboard_returns_data(scene: Scene, panel) -> None:
    """The data is from a real bridge with two workers, scraped by a real Prometheus."""
    for target in panel["targets"]:
        found = scene.prometheus.wait_for(substituted(target["expr"]))
        assert all(series["value"][1] != "NaN" for series in found) or "quantile" in target["expr"], target["expr"]
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert all(label in series["metric"] for series in found), target["expr"]


SELECTOR = re.compile(r"\b((?:scanbridge|process)_\w+|up)\b(\{[^}]*\})?")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_the_series_that_an_alert_uses_exist(scene: Scene, alert) -> None:
    """Each metric exists with exactly these labels and values: an alert with a misspelled one would never fire."""
    for metric, labels in SELECTOR.findall(alert["expr"]):
        scene.prometheus.wait_for(metric + labels)


def test_the_series_that_an_alert_of_a_cluster_uses_exist(scene: Scene) -> None:
    """Those of bridges in Prometheus, those of the scanning service in the page about them.

    tests/service/test_service_queue_metrics.py compares that page with real nodes.
    """
    page = (ROOT / "docs" / "operate" / "cluster.md").read_text()
    for alert in CLUSTER_ALERTS:
        for metric, labels in SELECTOR.findall(alert["expr"]):
            scene.prometheus.wait_for(metric if metric == "up" else metric + labels)
        for metric in re.findall(r"scanservice_\w+", alert["expr"]):
            assert f"`{metric}`" in page, metric


def test_the_tests_of_the_alerts_use_series_that_exist(scene: Scene) -> None:
    """They have the labels of the real series, so the tests apply to the real alerts."""
    for test in TESTS + CLUSTER_TESTS:
        for series in test["input_series"]:
            if series["series"].startswith("scanservice_"):  # of nodes that are not here: test_service_queue_metrics.py
                continue
            metric, labels = SELECTOR.findall(series["series"])[0]
            names = set(re.findall(r"(\w+)=", labels))
            found = scene.prometheus.wait_for(metric)
            assert [real for real in found if names <= set(real["metric"])], series["series"]


@pytest.mark.long
def test_alerts_fire_when_the_scanner_is_killed_and_resolve_when_it_is_back(scene: Scene) -> None:
    """Two workers under load; the rules are the shipped ones, but with shorter time ranges."""
    expected = {"ScanbridgeMailDeferred", "ScanbridgeNoScanner", "ScanbridgeScansFail", "ScanbridgeScannerDown"}

    def firing() -> set[str]:
        return {name for name, state in scene.prometheus.alerts().items() if state == "firing"}

    with scene.load():
        until(lambda: not firing() & expected, "no alert to be firing", 60)
        scene.kill_scanner()
        until(lambda: expected <= firing(), f"{expected} to fire", 60)
        scene.revive_scanner()
        until(lambda: not firing() & expected, "all alerts to resolve", 60)
