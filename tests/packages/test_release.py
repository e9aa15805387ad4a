"""A release: checksums that others can check, signed with the key that was named, from a commit only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bridge import __version__
from tests.requirements import need
from tools import release

ROOT = release.PROJECT
NAMING = (
    "deploy/ansible/cluster-inventory.yml",
    "deploy/ansible/inventory.yml",
    "deploy/cluster/kubernetes/README.md",
    "deploy/cluster/kubernetes/kustomization.yaml",
    "deploy/kubernetes/README.md",
    "deploy/kubernetes/kustomization.yaml",
    "docs/operate/install.md",
    "docs/operate/monitoring.md",
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "dist"
    place.mkdir()
    for name in ("a.whl", "b.deb"):
        (place / name).write_text(name)
    return place


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_checksums_are_checked_by_sha256sum(files: Path) -> None:
    """Also when they are written a second time, after signing."""
    for _ in range(2):
        (files / "SHA256SUMS.minisig").write_text("an older signature")
        release.write_sums(files)
        done = run("sha256sum", "--strict", "-c", release.SUMS, cwd=files)
        assert done.stdout == "a.whl: OK\nb.deb: OK\n"
    (files / "a.whl").write_text("changed")
    assert run("sha256sum", "-c", release.SUMS, cwd=files).returncode == 1


def test_minisign_verifies_the_signature(files: Path, tmp_path: Path) -> None:
    need("minisign")
    made = run("minisign", "-G", "-W", "-p", "public", "-s", "secret", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    sums = release.write_sums(files)
    assert release.sign(sums, tmp_path / "secret", None) == [files / "SHA256SUMS.minisig"]
    verify = ("minisign", "-V", "-p", tmp_path / "public", "-m", sums)
    assert run(*verify, cwd=tmp_path).returncode == 0
    sums.write_text("changed")
    assert run(*verify, cwd=tmp_path).returncode != 0


def test_gpg_verifies_the_signature(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it replaces an older one."""
    need("gpg", "gpg-agent", "gpgconf")
    home = tmp_path / "keys"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    options = ("--batch", "--pinentry-mode", "loopback", "--passphrase", "")
    made = run("gpg", *options, "--quick-generate-key", "releaser@example.org", "ed25519", "sign", cwd=tmp_path)
    try:
        assert made.returncode == 0, made.stderr
        sums = release.write_sums(files)
        (files / "SHA256SUMS.asc").write_text("an older signature")
        assert release.sign(sums, None, "releaser@example.org") == [files / "SHA256SUMS.asc"]
        verify = ("gpg", "--verify", files / "SHA256SUMS.asc", sums)
        assert run(*verify, cwd=tmp_path).returncode == 0
        sums.write_text("changed")
        assert run(*verify, cwd=tmp_path).returncode != 0
    finally:
        run("gpgconf", "--kill", "gpg-agent", cwd=tmp_path)


def test_without_a_key_nothing_is_signed_and_the_releaser_learns_how(files: Path) -> None:
    assert release.sign(release.write_sums(files), None, None) == []
    assert "Nothing is signed" in release.NOT_SIGNED and "make release MINISIGN_KEY=" in release.NOT_SIGNED


@pytest.mark.parametrize(
    ("tag", "changelog", "problem"),
    [
        (None, "", ""),
        (f"v{__version__}", f"## [{__version__}] - 2026-11-17\n", ""),
        (__version__, f"## [{__version__}]\n", "does not match the version"),
        ("v99.0.0", "## [99.0.0]\n", "does not match the version"),
        (f"v{__version__}", "## [Unreleased]\n", "has no section"),
    ],
)
def test_tag_fits_version_and_changelog(tag: str | None, changelog: str, problem: str) -> None:
    found = release.tag_problem(tag, changelog)
    assert problem in found and bool(found) == bool(problem)


@pytest.mark.parametrize("file", NAMING)
def test_files_that_name_the_version_name_this_one(file: str) -> None:
    """Whoever sets the version also changes these files."""
    named = re.findall(r"(?:scanbridge[-_]|newTag: |^scanbridge )(\d+\.\d+\.\d+)", (ROOT / file).read_text(), re.M)
    assert named and set(named) == {__version__}


def test_no_other_file_names_the_version() -> None:
    """In pages, recipes and the image; what was once measured or tried keeps the version it was tried with."""
    pattern = re.compile(rf"(?:scanbridge[-_ ]|newTag: ){re.escape(__version__)}")
    places = [ROOT / "README.md", *(ROOT / "deploy").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    places = [path for path in places if path.is_file() and not path.is_relative_to(ROOT / "docs/evidence")]
    found = {str(path.relative_to(ROOT)) for path in places if pattern.search(path.read_text(errors="replace"))}
    assert found == set(NAMING)


def test_files_of_an_earlier_build_are_not_released(files: Path, tmp_path: Path) -> None:
    assert "a.whl, b.deb" in release.leftovers(files)
    assert release.leftovers(tmp_path / "missing") == ""


def test_a_release_is_built_from_a_commit(tmp_path: Path) -> None:
    """Not from a directory without git, and not with files that only this machine has."""
    need("git")
    with pytest.raises(SystemExit, match="the commit of the release is unknown"):
        release.commit_time(tmp_path)
    author = ("-c", "user.name=releaser", "-c", "user.email=releaser@example.org")
    run("git", "init", "-q", cwd=tmp_path)
    run("git", *author, "commit", "-q", "--allow-empty", "-m", "first", cwd=tmp_path)
    assert release.commit_time(tmp_path).isdigit() and release.changes(tmp_path) == ""
    (tmp_path / "new.py").touch()
    assert "new.py" in release.changes(tmp_path)
