"""The check before a release: each step passes, fails or says why it cannot run, and the page shows which."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import CannotRun, Failed, Result, Step


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
    "broken": raises(FileNotFoundError(2, "No such file", "make")),
}


def test_every_step_has_a_row_whatever_happens() -> None:
    """One that fails does not keep the others from running."""
    rows = list(release_check.check(STEPS, []))
    assert [row.result for row in rows] == [Result.PASSED, Result.FAILED, Result.NOT_RUN, Result.FAILED]
    assert rows[2].said == "lintian is not installed" and "No such file" in rows[3].said


def test_the_page_names_what_was_not_run(tmp_path: Path) -> None:
    """Steps that were not chosen, and those that cannot run; the prose above the table stays."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{release_check.MARK}old")
    release_check.write(list(release_check.check(STEPS, ["good", "impossible"])), page)
    text = page.read_text()
    assert text.startswith("# Title\n") and "old" not in text
    assert "Not run: bad, impossible, broken." in text
    assert "| good | passed | 0 | all \\| well |" in text and "| bad | not run | - | not chosen |" in text


def test_an_unknown_step_is_a_mistake() -> None:
    command = [sys.executable, "-m", "tools.release_check", "sbom", "soup"]
    done = subprocess.run(command, cwd=release_check.PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no such step: soup" in done.stderr


def archive(path: Path, name: str, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return path


def test_bill_of_materials_is_found_in_a_package_within_a_package(tmp_path: Path) -> None:
    """A Debian package is an archive with another one in it."""
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
    with pytest.raises(Failed, match="has no bill of materials"):
        release_check.component_count(archive(tmp_path / "a.tar.gz", name, content))
