"""The mixin: every alert is tested and explained, every query of the dashboard brings data."""

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


ALERTS = [rule for group in rules("alerts.yml")["groups"] for rule in group["rules"]]
TESTS = rules("alerts_test.yml")["tests"]
DASHBOARD: dict[str, Any] = json.loads((MIXIN / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_alerts_and_their_tests_pass() -> None:
    """Prometheus' own tool has nothing to say against them."""
    promtool("check", "rules", MIXIN / "alerts.yml")
    promtool("test", "rules", MIXIN / "alerts_test.yml")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not(alert) -> None:
    for story, wanted in (("fires", 1), ("silent", 0)):
        tests = [test for test in TESTS if test["name"] == f"{alert['alert']} {story}"]
        assert tests
        for test in tests:
            (asked,) = test["promql_expr_test"]
            assert f'ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}}' in asked["expr"]
            assert len(asked["exp_samples"]) == wanted


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_is_wrong_and_where_to_read_on(alert) -> None:
    """Its section of the runbook says what it means, what to look at and what to do."""
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert notes["summary"] and notes["description"].endswith(".")
    page, _, anchor = notes["runbook_url"].partition("#")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))
    (section,) = [text for title, text in sections.items() if title.lower() == anchor]
    for word in ("**It means**", "**Look at**", "**Do**"):
        assert word in section, f"{anchor}: {word}"


def test_the_runbook_has_no_section_without_an_alert() -> None:
    titles = set(
        re.findall(r"^## (Scanbridge\w+)$", (ROOT / "docs" / "operate" / "runbooks.md").read_text(), re.MULTILINE)
    )
    assert {title.lower() for title in titles} == {
        alert["annotations"]["runbook_url"].partition("#")[2] for alert in ALERTS
    }


def test_dashboard_is_what_its_generator_makes() -> None:
    """`make docs` would change nothing."""
    spec = importlib.util.spec_from_file_location("dashboard", MIXIN / "dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (MIXIN / "dashboard.json").read_text() == module.text(), "run `make docs`"


def test_dashboard_is_one_that_grafana_takes() -> None:
    """Ids are unique, nothing overlaps, every panel has its source, a unit and queries; the variables are there."""
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


def for_now(expression: str) -> str:
    """As Grafana would fill it in."""
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".+")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']} {panel['title']}")
def test_every_query_of_the_dashboard_brings_data(scene: Scene, panel) -> None:
    """From a real bridge with two workers, through a real Prometheus."""
    for target in panel["targets"]:
        found = scene.prometheus.wait_for(for_now(target["expr"]))
        assert all(one["value"][1] != "NaN" for one in found) or "quantile" in target["expr"], target["expr"]
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert all(label in one["metric"] for one in found), target["expr"]


SELECTOR = re.compile(r"\b((?:scanbridge|process)_\w+|up)\b(\{[^}]*\})?")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_what_an_alert_looks_for_is_there(scene: Scene, alert) -> None:
    """Each metric, with the very labels and values: a misspelled one would be silent for ever."""
    for metric, labels in SELECTOR.findall(alert["expr"]):
        scene.prometheus.wait_for(metric + labels)


def test_the_stories_are_told_of_series_that_exist(scene: Scene) -> None:
    """With the labels that they really have, so that the tests of the alerts test these alerts."""
    for story in TESTS:
        for series in story["input_series"]:
            metric, labels = SELECTOR.findall(series["series"])[0]
            names = set(re.findall(r"(\w+)=", labels))
            found = scene.prometheus.wait_for(metric)
            assert [one for one in found if names <= set(one["metric"])], series["series"]


def test_alerts_fire_when_the_scanner_is_killed_and_resolve_when_it_is_back(scene: Scene) -> None:
    """Two workers under load; minutes are fractions of a second here, everything else is as shipped."""
    expected = {"ScanbridgeMailDeferred", "ScanbridgeNoScanner", "ScanbridgeScansFail", "ScanbridgeScannerDown"}

    def firing() -> set[str]:
        return {name for name, state in scene.prometheus.alerts().items() if state == "firing"}

    with scene.load():
        until(lambda: not firing() & expected, "no alert before", 60)
        scene.kill_scanner()
        until(lambda: expected <= firing(), f"{expected} to fire", 60)
        scene.revive_scanner()
        until(lambda: not firing() & expected, "all of them to resolve", 60)
