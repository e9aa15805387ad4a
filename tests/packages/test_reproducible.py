"""Two builds of the same source are equal, bit for bit, and every package says what it contains."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from bridge import __version__
from tests.packages.package_kit import builder
from tests.requirements import find, need_package_index
from tools import sbom
from tools.release import digests
from tools.release_check import component_count

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def explain(first: Path, second: Path) -> str:
    """What differs, if diffoscope is installed."""
    if find("diffoscope") is None:
        return "install diffoscope to see what differs"
    command = ["diffoscope", "--max-report-size", "20000", str(first), str(second)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600).stdout[:4000]


@pytest.mark.long
def test_two_builds_of_debian_and_rpm_packages_are_equal(tmp_path: Path) -> None:
    """In different directories and at different times; without optional libraries, to save time."""
    build = builder()
    need_package_index()
    for name in ("first", "second"):
        stage, out = tmp_path / f"stage-{name}", tmp_path / name
        stage.mkdir()
        out.mkdir()
        build.environment(stage, build.NATIVE, extras="")
        build.documents(stage)
        for packager in ("deb", "rpm"):
            build.package(stage, packager, build.NATIVE, "9.9.9", out)
    first, second = digests(tmp_path / "first"), digests(tmp_path / "second")
    assert len(first) == 2
    assert first == second, explain(tmp_path / "first", tmp_path / "second")
    assert all(component_count(tmp_path / "first" / name) for name in first)


@pytest.mark.long
def test_two_builds_of_wheel_and_source_archive_are_equal(tmp_path: Path) -> None:
    """And the wheel has the bill of materials where PEP 770 wants it."""
    need_package_index()
    for name in ("first", "second"):
        subprocess.run([BIN / "uv", "build", "--quiet", "--out-dir", tmp_path / name, ROOT], check=True, timeout=300)
        (tmp_path / name / ".gitignore").unlink(missing_ok=True)
    assert len(digests(tmp_path / "first")) == 2
    assert digests(tmp_path / "first") == digests(tmp_path / "second"), explain(tmp_path / "first", tmp_path / "second")
    (wheel,) = (tmp_path / "first").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/sboms/scanbridge.cdx.json")]
        assert archive.read(name) == sbom.SBOM.read_bytes()


def invalid(text: str) -> object:
    """What is wrong with this bill of materials; None if it is valid."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds: not in processes that run other tests

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def test_bill_of_materials_is_valid_and_up_to_date() -> None:
    """CycloneDX's own schema accepts it, and it has every package of the lock file for Linux."""
    text = sbom.SBOM.read_text()
    assert invalid(text) is None
    bill = json.loads(text)
    found = {one["name"]: one["version"] for one in bill["components"]}
    expected = {one.name: one.version for one in sbom.used(sbom.LOCK.read_text())}
    assert bill["metadata"]["component"]["version"] == __version__, "run `make lock`"
    assert found == expected, "run `make lock`"
    listed = [line.partition(":")[0] for line in sbom.LICENCES.read_text().splitlines()[1:]]
    assert listed == [f"{name} {number}" for name, number in expected.items()], "run `make lock`"


def test_a_directory_of_libraries_gives_the_same_bytes_twice() -> None:
    """What the Debian and RPM packages contain is described from what is there."""
    (site,) = [Path(path) for path in sys.path if path.endswith("site-packages")][:1]
    made_at = datetime.fromtimestamp(1, UTC)
    first, second = (sbom.sbom(sbom.installed(site), made_at) for _ in range(2))
    assert first == second
    assert invalid(first) is None
    versions = {one["name"].lower(): one["version"] for one in json.loads(first)["components"]}
    assert versions["aiosmtpd"] == version("aiosmtpd") and "scanbridge" not in versions
