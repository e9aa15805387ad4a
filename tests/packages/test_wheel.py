"""Wheel and source archive: the output of `make dist` is complete and can be installed elsewhere."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from bridge import __version__
from bridge.config.model import EMBEDDED
from bridge.testing import SmtpClient, free_port, until
from tests.requirements import need, need_package_index

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# Keeps this checkout from shadowing the installed package.
ALONE = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "SCANBRIDGE"))}


def run(*words: str | Path, **variables: str | Path) -> str:
    environment = (
        ALONE | {"PATH": f"{BIN}:{os.environ['PATH']}"} | {key: str(value) for key, value in variables.items()}
    )
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=180, env=environment, cwd="/"
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the recipe of `make dist` with a temporary output directory."""
    need_package_index()
    place = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--out-dir", place, ROOT)
    return place


def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.mark.long
def test_wheel_from_uv_runs_alone_and_passes_a_mail(dist: Path, tmp_path: Path) -> None:
    """In a fresh environment with only its declared dependencies, the embedded default accepts a mail."""
    run("uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    run("uv", "pip", "install", "--quiet", "--python", tmp_path / "env", wheel(dist))
    program = tmp_path / "env/bin/scanbridge"
    assert f"{__version__} (commit " in run(program, "--version")
    assert (tmp_path / "env/share/doc/scanbridge/samples/spam.eml").is_file(), "as docs/operate/start.md says"
    for name in ("lists", "quarantine"):  # commands with imports of their own
        run(program, name, "--help")
    text, smtp = EMBEDDED.format(state=tmp_path / "state"), free_port()
    for port in ("9081", "10027", "9082"):
        text = text.replace(f":{port}", f":{free_port()}")
    (tmp_path / "bridge.yml").write_text(text.replace(":10025", f":{smtp}"))
    (tmp_path / "state").mkdir()
    daemon = subprocess.Popen([program, "run", "-c", tmp_path / "bridge.yml"], env=ALONE, stderr=subprocess.PIPE)
    try:
        until(lambda: not _refused(smtp), "the daemon")
        checked = run(program, "check", "-c", tmp_path / "bridge.yml")
        assert "PROBLEM" not in checked and "pip install 'scanbridge[console]'" in checked
        with SmtpClient(smtp) as client:
            client.open()
            assert client.mail().startswith(b"250")
    finally:
        daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, said.decode()[-1000:]
    assert len(list((tmp_path / "state/Maildir/new").iterdir())) == 1


def _refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.long
def test_wheel_from_pipx_brings_program_and_man_pages(dist: Path, tmp_path: Path) -> None:
    """`pipx install`: the command is there, and `man scanbridge-run` finds its page."""
    places = {"PIPX_HOME": tmp_path / "home", "PIPX_BIN_DIR": tmp_path / "bin", "PIPX_MAN_DIR": tmp_path / "man"}
    run("pipx", "install", "--python", sys.executable, wheel(dist), **places)
    assert __version__ in run(tmp_path / "bin/scanbridge", "--version")
    venvs = run("pipx", "environment", "--value", "PIPX_LOCAL_VENVS", **places).strip()
    assert (Path(venvs) / "scanbridge/share/doc/scanbridge/samples/spam.eml").is_file(), "as docs/operate/start.md says"
    need("man")
    assert "scanbridge run [OPTIONS]" in re.sub(
        "\x1b\\[\\d*m|.\b", "", run("man", "-M", tmp_path / "man", "scanbridge-run")
    )


@pytest.mark.long
def test_source_archive_has_what_a_packager_needs(dist: Path) -> None:
    """It contains units, recipes, man pages, completion, licence and tests, but no virtual environment."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {"LICENSE", "README.md", "systemd/scanbridge.service", "man/scanbridge.1", "completions/_scanbridge"}
    assert wanted | {"deploy/postfix-proxy/bridge.yml", "tests/packages/test_wheel.py"} <= names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|__pycache__|dist|build)/", name)]


def test_the_packages_hold_every_optional_library() -> None:
    """The extra `all`, which the packages and the image install, names all extras that are not for development."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.fullmatch(r"scanbridge\[(.+)\]", extras["all"][0])
    assert named and set(named[1].split(",")) == set(extras) - {"all", "bench", "dev", "fuzz", "train"}
