"""`make release`: everything that a release consists of, in dist/, with signed checksums.

A release is built from a commit, never from files that only this machine has, so that anybody can build it again and
compare. What is signed is `SHA256SUMS`: one signature covers all files. The key stays with the person who releases;
the forge only builds, and its checksums must be equal to ours. docs/develop/release.md is the checklist.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from bridge import __version__

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
SUMS = "SHA256SUMS"
NOT_SIGNED = f"""\
Nothing is signed: no key was named. To sign the checksums in this directory, run one of these commands in it:
  minisign -S -s KEY_FILE -m {SUMS}
  gpg --local-user KEY_ID --armor --detach-sign {SUMS}
or build again with `make release MINISIGN_KEY=KEY_FILE` or `make release GPG_KEY=KEY_ID`."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release.")
    parser.add_argument(
        "--out", type=Path, default=PROJECT / "dist", help="output directory, which must be empty (default: dist)"
    )
    parser.add_argument("--tag", help="the tag for this release; it must match the version and the changelog")
    parser.add_argument("--minisign-key", type=Path, help="file that contains the secret key")
    parser.add_argument("--gpg-key", help="id of the secret key")
    wanted = parser.parse_args()
    moment = commit_time(PROJECT)
    for problem in [changes(PROJECT), tag_problem(wanted.tag), leftovers(wanted.out)]:
        if problem:
            sys.exit(problem)
    build(wanted.out, moment)
    sums = write_sums(wanted.out)
    print(sums.read_text(), end="")
    signatures = sign(sums, wanted.minisign_key, wanted.gpg_key)
    print("\n".join(f"signed: {path}" for path in signatures) or NOT_SIGNED)


def commit_time(project: Path) -> str:
    """All times in the packages; without it two builds would differ."""
    return _git(project, "log", "-1", "--format=%ct").strip()


def changes(project: Path) -> str:
    found = _git(project, "status", "--porcelain")
    return f"commit these files first, because a release is built from a commit:\n{found}" if found else ""


def _git(project: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(project), *words], capture_output=True, text=True)  # noqa: S603, S607
    if done.returncode != 0:
        sys.exit(f"git {words[0]} failed, so the commit of the release is unknown: {done.stderr.strip()}")
    return done.stdout


def tag_problem(tag: str | None, changelog: str | None = None) -> str:
    """What does not fit the tag; "" if all does."""
    if tag is None:
        return ""
    if tag != f"v{__version__}":
        return f"the tag {tag} does not match the version {__version__} in bridge/__init__.py"
    text = (PROJECT / "CHANGELOG.md").read_text() if changelog is None else changelog
    if not re.search(rf"^## \[{re.escape(__version__)}\]", text, re.MULTILINE):
        return f"CHANGELOG.md has no section [{__version__}]"
    return ""


def leftovers(out: Path) -> str:
    """Files of an earlier build would be uploaded with the new ones."""
    found = sorted(path.name for path in out.iterdir()) if out.exists() else []
    return f"{out} is not empty; remove these files first: {', '.join(found)}" if found else ""


def build(out: Path, moment: str) -> None:
    """Wheel, source archive, Debian and RPM package."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": moment}
    for command in (
        [BIN / "uv", "build", "--quiet", "--out-dir", out, PROJECT],
        [sys.executable, PROJECT / "deploy/package/build.py", "--out", out],
    ):
        subprocess.run(list(map(str, command)), check=True, env=environment, cwd=PROJECT)  # noqa: S603
    (out / ".gitignore").unlink(missing_ok=True)  # uv's


def digests(place: Path) -> dict[str, str]:
    """The SHA-256 of every file of a release, by name."""
    files = [path for path in sorted(place.iterdir()) if path.is_file() and not path.name.startswith(SUMS)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_sums(place: Path) -> Path:
    """As `sha256sum -c` reads it."""
    sums = place / SUMS
    sums.write_text("".join(f"{digest}  {name}\n" for name, digest in digests(place).items()))
    return sums


def sign(sums: Path, minisign_key: Path | None, gpg_key: str | None) -> list[Path]:
    """The signatures made; none without a key. The programs ask for passwords themselves."""
    made = []
    if minisign_key:
        made.append(sums.with_name(f"{SUMS}.minisig"))
        subprocess.run(["minisign", "-S", "-s", minisign_key, "-m", sums], check=True)  # noqa: S603, S607
    if gpg_key:
        made.append(sums.with_name(f"{SUMS}.asc"))
        options = ["--yes", "--local-user", gpg_key, "--armor", "--output", made[-1]]
        subprocess.run(["gpg", *options, "--detach-sign", sums], check=True)  # noqa: S603, S607
    return made


if __name__ == "__main__":
    main()
