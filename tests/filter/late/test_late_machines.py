"""Several machines with one PostgreSQL: all of them know each late decision."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import answer, result, running_bridge
from tests.filter.smtp_kit import Gate, mail_lines, send, until

SHORT_DEADLINE: dict[str, Any] = {"deadline": "1s"}  # a tenth of it is reserved for the relay


def test_the_retry_at_another_machine_is_answered_from_the_late_decision(server_database: str, tmp_path: Path) -> None:
    """The other machine replies 451 while the scan runs, then with the decision; only one scanner saw the mail."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    shared = {"state_database": server_database}
    with (
        running_bridge(tmp_path / "here", shared, **SHORT_DEADLINE) as here,
        running_bridge(tmp_path / "there", shared, **SHORT_DEADLINE) as there,
    ):
        gate = Gate(here, answer(200, result("bounce")))
        assert send(here).startswith("451 4.4.7 ")
        assert there.daemon.late is not None
        until(lambda: not there.daemon.late.is_empty(), "the other machine to see the late scan")  # type: ignore[union-attr]
        with mail_lines() as lines:
            assert send(there).startswith("451 4.4.7 ")
            gate.open()
            until(lambda: send(there).startswith("550 5.7.1 "), "the decision")
        assert {line["late"] for line in lines[:-1]} == {"running"} and lines[-1]["late"] == "hit"
        assert len(here.scanner.submissions) == 1 and not there.scanner.submissions
    assert not (tmp_path / "here" / "state" / "late.sqlite").exists()


def test_an_unavailable_database_costs_no_mail_and_is_used_again_later(
    fragile_postgresql: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then decisions are kept in memory; the log says so once, without the URL."""
    caplog.set_level("INFO")
    url = fragile_postgresql.url.format(name="postgres")
    fragile_postgresql.stop()
    is_away = True
    try:
        with running_bridge(tmp_path, {"state_database": url}, **SHORT_DEADLINE) as bridge:
            assert bridge.daemon.late is not None
            bridge.daemon.late.settings = replace(bridge.daemon.late.settings, reopen_s=0.1)
            gate = Gate(bridge, answer(200, result("bounce")))
            assert send(bridge).startswith("451 4.4.7 ")
            gate.open()
            until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
            assert send(bridge).startswith("550 5.7.1 ")
            fragile_postgresql.start()
            is_away = False
            until(lambda: "the store is working again" in caplog.text, "the database to be used again")
    finally:
        if is_away:
            fragile_postgresql.start()
    failures = [record.getMessage() for record in caplog.records if "the store failed" in record.getMessage()]
    assert len(failures) == 1 and "only in memory" in failures[0]
    assert not re.search("postgresql:|tester", caplog.text.replace("scanbridge[postgresql]", ""))
