"""The check before a release: each step passes, fails or says why it cannot run, and the page shows which."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import requirements
from tools import release_check
from tools.release_check import CannotRun, Failed, InPart, Result, Step


def bill(about: str, *libraries: str) -> bytes:
    components = [{"name": name} for name in libraries]
    found = {"bomFormat": "CycloneDX", "metadata": {"component": {"name": about}}, "components": components}
    return json.dumps(found).encode()


BILL = bill("scanbridge", "click", "rich")


def raises(exc: Exception) -> Step:
    def step() -> str:
        raise exc

    return step


STEPS: dict[str, Step] = {
    "good": lambda: "all | well",
    "bad": raises(Failed("two builds differ")),
    "impossible": raises(CannotRun("lintian is not installed")),
    "partly": raises(InPart("3.14 is not installed")),
    "broken": raises(FileNotFoundError(2, "No such file", "make")),
}


def test_every_step_has_a_row_whatever_happens() -> None:
    """One that fails does not keep the others from running."""
    rows = list(release_check.check(STEPS, [], "c0ffee"))
    results = [Result.PASSED, Result.FAILED, Result.NOT_RUN, Result.IN_PART, Result.FAILED]
    assert [row.result for row in rows] == [result.value for result in results]
    assert rows[2].said == "lintian is not installed" and "No such file" in rows[4].said


def test_the_page_names_what_was_not_run(tmp_path: Path) -> None:
    """Steps that cannot run, or only in part; the prose above the table stays."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{release_check.MARK}old")
    release_check.write(list(release_check.check(STEPS, ["good", "impossible", "partly"], "c0ffee")), "c0ffee", page)
    text = page.read_text()
    assert text.startswith("# Title\n") and "old" not in text
    assert "Not run: impossible. Run only in part: partly.\n" in text
    assert "| good | passed | 0 | c0ffee | all \\| well |" in text and "| impossible | not run | - | c0ffee |" in text


def test_the_page_names_steps_of_other_commits(tmp_path: Path) -> None:
    """All steps take hours, so some are run on a later commit; the rows of the others are kept as they were."""
    page = tmp_path / "page.md"
    page.write_text(release_check.MARK)
    first = list(release_check.check(STEPS, ["good", "bad"], "c0ffee"))
    release_check.write(first, "c0ffee", page)
    earlier = release_check.earlier_rows(page)
    assert list(earlier.values()) == first
    again = {row.step: row for row in release_check.check(STEPS, ["bad"], "f00d")}
    release_check.write(list((earlier | again).values()), "f00d", page)
    text = page.read_text()
    assert "Run on other commits: good.\n" in text
    assert "| good | passed | 0 | c0ffee | all \\| well |" in text
    assert "| bad | **failed** | 0 | f00d | two builds differ |" in text


def test_an_unknown_step_is_a_mistake() -> None:
    command = [sys.executable, "-m", "tools.release_check", "sbom", "soup"]
    done = subprocess.run(command, cwd=release_check.PROJECT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and "no such step: soup" in done.stderr


def test_chosen_steps_do_not_choose_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """make exports its ONLY to the steps, and `make test-pythons` would take it for its own."""
    monkeypatch.setenv("ONLY", "pythons")
    assert release_check._run("sh", "-c", "echo ${ONLY-everything}") == "everything\n"


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("..\n7 passed in 30.12s\n", "7 passed in 30.12s"),
        ("..\n=== 5 passed, 2 skipped in 3.00s ===\n", InPart("5 passed, 2 skipped in 3.00s")),
        ("ss\n7 skipped in 0.20s\n", CannotRun("7 skipped in 0.20s")),
        ("1 failed, 9 passed in 9.0s (0:00:09)\n1 passed in 1s\nFailed beside the others:\n  tests/a.py\n", None),
    ],
    ids=["passed", "some skipped", "all skipped", "passed alone"],
)
def test_skipped_tests_have_not_passed(output: str, outcome: str | Exception | None) -> None:
    """`make test-upgrade` without a package index skips everything, with exit status 0."""
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome), match=str(outcome)):
            release_check.tested(output)
    else:
        said = outcome or "1 failed, 9 passed in 9.0s (0:00:09), then 1 passed in 1s"
        assert release_check.tested(output) == said


def library(name: str, *holes: str, reason: str = "") -> dict[str, object]:
    """As pip-audit reports it."""
    if reason:
        return {"name": name, "skip_reason": reason}
    return {"name": name, "version": "1.0", "vulns": [{"id": hole} for hole in holes]}


UNKNOWN = library("aiosmtpd", reason="Dependency not found on PyPI")


def test_an_audit_names_what_could_not_be_looked_up() -> None:
    """The first library that was not found used to hide all others."""
    known = [library("click"), library("rich")]
    assert release_check.audited(known) == "no known vulnerability in 2 of 2 libraries"
    with pytest.raises(InPart, match="in 2 of 3 libraries; could not be looked up: aiosmtpd"):
        release_check.audited([*known, UNKNOWN])
    with pytest.raises(CannotRun, match="none of 1 libraries could be looked up: Dependency not found on PyPI"):
        release_check.audited([UNKNOWN])
    with pytest.raises(Failed, match=r"nh3 1.0: PYSEC-1, nh3 1.0: PYSEC-2; could not be looked up: aiosmtpd"):
        release_check.audited([*known, library("nh3", "PYSEC-1", "PYSEC-2"), UNKNOWN])


def archive(path: Path, name: str, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return path


def test_bill_of_materials_is_found_in_a_package_within_a_package(tmp_path: Path) -> None:
    """A Debian package is an archive with another one in it."""
    requirements.library("libarchive", "archives")
    inner = archive(tmp_path / "data.tar.gz", "./usr/share/doc/scanbridge/sbom.cdx.json", BILL)
    data = inner.read_bytes()
    header = b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (b"data.tar.gz", 0, 0, 0, b"100644", len(data))
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + header + data + b"\n" * (len(data) % 2))
    assert release_check.component_count(tmp_path / "a.deb") == 2
    assert release_check.component_count(archive(tmp_path / "a.tar.gz", "a/scanbridge.cdx.json", BILL)) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [("readme", b"x"), ("a.cdx.json", bill("scanbridge")), ("nh3/auditwheel.cdx.json", bill("nh3", "ammonia"))],
    ids=["none", "empty", "that of a library"],
)
def test_a_package_without_our_bill_of_materials_fails(tmp_path: Path, name: str, content: bytes) -> None:
    """Libraries bring their own; they must not count as ours."""
    requirements.library("libarchive", "archives")
    with pytest.raises(Failed, match="has no bill of materials"):
        release_check.component_count(archive(tmp_path / "a.tar.gz", name, content))
