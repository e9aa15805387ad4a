"""Runs aiosmtpd's own test suite against our SMTP class; known.toml lists every test that fails, with the reason.

Run as a script, this regenerates docs/evidence/aiosmtpd-suite.md from known.toml.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "evidence" / "aiosmtpd-suite.md"
MODULES = ("test_smtp", "test_starttls", "test_smtpsmuggling", "test_proxyprotocol")
TOTAL = 430
RUNS = {"first": MODULES[:1], "second": MODULES[1:]}  # run in parallel: they spend most of their time waiting


def known() -> dict[str, Any]:
    return tomllib.loads((HERE / "known.toml").read_text())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Which tests ran, failed, and passed only without the enhanced status code."""
    directory = tmp_path_factory.mktemp("suite")
    runs = [(name, start(name, modules, directory)) for name, modules in RUNS.items()]
    outcome: dict[str, set[str]] = {"ran": set(), "failed": set(), "status_code": set()}
    for name, run in runs:
        said, _ = run.communicate(timeout=400)
        report = directory / f"{name}.json"
        assert report.exists(), said
        for key, tests in json.loads(report.read_text()).items():
            outcome[key].update(tests)
    return outcome


def start(name: str, modules: tuple[str, ...], directory: Path) -> subprocess.Popen[str]:
    """Starts a part of the suite on its own port, without our pytest settings."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-c", os.devnull, "--rootdir", str(directory)]
    command += [
        "-p",
        "swap",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        *(f"aiosmtpd.tests.{module}" for module in modules),
    ]
    env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}", "SUITE_REPORT": str(directory / f"{name}.json")}
    env["ASYNCIO_CATCHUP_DELAY"] = (
        "1"  # seconds that twelve of its tests give the server; its own 0.1 is too short here
    )
    for name in ("SUITE_RAW", "PYTEST_ADDOPTS"):
        env.pop(name, None)
    return subprocess.Popen(
        command, cwd=directory, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_whole_suite_ran(outcome: dict[str, set[str]]) -> None:
    """No test of these modules was skipped."""
    assert len(outcome["ran"]) == TOTAL


def test_only_documented_choices_contradict_the_suite(outcome: dict[str, set[str]]) -> None:
    """Every failing test is in known.toml with its reason, and every test listed there fails."""
    listed = {test for choice in known()["choice"] for test in choice["tests"]}
    assert sorted(outcome["failed"] - listed) == [], "failed, but not in known.toml"
    assert sorted(listed - outcome["failed"]) == [], "in known.toml, but passes now"


def test_status_code_list_is_exact(outcome: dict[str, set[str]]) -> None:
    """Tests that fail only because our replies have enhanced status codes are listed, too."""
    needed = outcome["status_code"] - outcome["failed"]
    assert sorted(needed) == sorted(known()["status_code"]["tests"])


def test_page_is_up_to_date() -> None:
    """docs/evidence/aiosmtpd-suite.md is generated from known.toml."""
    assert PAGE.read_text() == page(), f"run: python {Path(__file__).relative_to(ROOT)}"


INTRODUCTION = """\
# aiosmtpd's own tests, run against our SMTP class

Our intake is a subclass of aiosmtpd's server, so it must pass aiosmtpd's own tests, except where they
contradict a deliberate choice. `tests/aiosmtpd_suite` runs the modules that test the protocol
({modules}: {total} tests) with our class instead of aiosmtpd's.
**{passed} pass, {count} contradict a choice below.** Our test fails if any other test fails, and also if one of
these passes. This page is generated from `tests/aiosmtpd_suite/known.toml`.
"""
RAW = """\
## With enhanced status codes compared

All our replies carry an enhanced status code (`250 2.1.0 OK`); most of aiosmtpd's do not (`250 OK`). With the
plugin `swap.py`, replies that the test client receives compare equal with and without this code, because this
difference would otherwise hide all others. With `SUITE_RAW=1`, which only swaps the class, {count} more tests fail,
all for one reason: {reason}.
"""


def page() -> str:
    data = known()
    count = sum(len(choice["tests"]) for choice in data["choice"])
    modules = ", ".join(f"`{module}`" for module in MODULES)
    text = INTRODUCTION.format(modules=modules, total=TOTAL, passed=TOTAL - count, count=count)
    for choice in data["choice"]:
        text += f"\n## {choice['title']}\n\n{choice['reason']}\n\n{items(choice['tests'])}"
    status = data["status_code"]
    return f"{text}\n{RAW.format(count=len(status['tests']), reason=status['reason'])}\n{items(status['tests'])}"


def items(tests: list[str]) -> str:
    return "".join(f"- `{test}`\n" for test in tests)


if __name__ == "__main__":
    PAGE.write_text(page())
