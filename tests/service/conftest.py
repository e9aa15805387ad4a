"""Servers that the tests connect to."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.service.analysis.plugin import ENTRY_POINTS
from tests.postgresql import fresh_database
from tests.requirements import find, need, unavailable
from tests.server_program import ServerProgram
from tests.service.service_kit import EICAR, free_port
from tools.evaluation_engines import rspamd_command


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """The URL of an empty database, once for each kind."""
    if request.param == "sqlite":
        return "sqlite:///lists.sqlite"
    return fresh_database(request.getfixturevalue("postgresql"))


@pytest.fixture
def installed_plugin(tmp_path, monkeypatch):
    """A package with the analyzers of `own_analyzer.py`."""
    package = tmp_path / "site" / "own_analyzer-1.dist-info"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("own_analyzer.py"), tmp_path / "site")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own_analyzer\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\nword = own_analyzer:Sync\nbroken = own_analyzer:Broken\nobedient = own_analyzer:Obedient\n"
        "eats = own_analyzer:Eats\nleaves = own_analyzer:Leaves\nwaits = own_analyzer:Waits\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))  # for the processes
    yield
    sys.modules.pop("own_analyzer", None)


@pytest.fixture(scope="module")
def clamd():
    """A local clamd for all tests of a module."""
    with running_clamd() as daemon:
        yield daemon


@pytest.fixture
def own_clamd():
    """A local clamd that the test may kill."""
    with running_clamd() as daemon:
        yield daemon


@contextmanager
def running_clamd() -> Iterator[ServerProgram]:
    """With a single signature: the EICAR test string."""
    need("clamd")
    program = find("clamd") or ""
    directory, port = Path(tempfile.mkdtemp(prefix="clamd-")), free_port()
    (directory / "lab.ndb").write_text(f"Lab.Eicar:0:*:{EICAR.hex()}\n")
    (directory / "clamd.conf").write_text(
        f"TCPSocket {port}\nTCPAddr 127.0.0.1\nDatabaseDirectory {directory}\n"
        f"Foreground yes\nTemporaryDirectory {directory}\n"
        "StreamMaxLength 60M\nMaxScanSize 20M\nMaxFileSize 10M\nAlertExceedsMax yes\n"
        + ("User clamav\n" if os.geteuid() == 0 else "")
    )
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, "clamav")
    daemon = ServerProgram([program, "-F", "-c", str(directory / "clamd.conf")], directory / "log", port)
    yield daemon
    daemon.kill()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def rspamd():
    """A local rspamd without DNS."""
    need("rspamd")
    program = find("rspamd") or ""
    directory, port = Path(tempfile.mkdtemp(prefix="rspamd-")), free_port()
    daemon = ServerProgram(rspamd_command(program, directory, port), directory / "log", port)
    yield daemon
    daemon.kill()
    shutil.rmtree(directory, ignore_errors=True)


RECIPE = Path(__file__).parents[2] / "deploy/icap/c-icap.conf"
# What Debian's own c-icap.conf has beside the settings of the recipe.
C_ICAP = """\
PidFile {directory}/pid
CommandsSocket {directory}/ctl
ServerLog {directory}/server.log
AccessLog {directory}/access.log
StartServers 1
MaxServers 2
ThreadsPerChild 10
LoadMagicFile /etc/c-icap/c-icap.magic
ModulesDir {modules}
ServicesDir {modules}
TemplateDir /usr/share/c_icap/templates/
Service echo srv_echo.so
"""


@contextmanager
def running_c_icap(clamd_port: int) -> Iterator[ServerProgram]:
    """The recipe's ICAP services, `virus_scan` and `avscan`, which ask clamd, and `echo`."""
    need("c-icap")
    modules = next(Path("/usr/lib").glob("*/c_icap/virus_scan.so"), None)
    if modules is None:
        unavailable("c-icap's virus_scan not installed (Debian: apt-get install libc-icap-mod-virus-scan)")
    directory, port = Path(tempfile.mkdtemp(prefix="c-icap-")), free_port()
    is_root = os.geteuid() == 0
    recipe = RECIPE.read_text()
    for pattern, ours in (
        (r"^Port .*", f"Port 127.0.0.1:{port}"),
        (r"^TmpDir .*", f"TmpDir {directory}"),
        (r"^clamd_mod.ClamdSocket .*", f"clamd_mod.ClamdHost 127.0.0.1\nclamd_mod.ClamdPort {clamd_port}"),
        *([] if is_root else [(r"^(User|Group) .*", "")]),
    ):
        recipe, count = re.subn(pattern, ours, recipe, flags=re.MULTILINE)
        assert count, f"{RECIPE} has no line {pattern}"
    (directory / "c-icap.conf").write_text(C_ICAP.format(directory=directory, modules=modules.parent) + recipe)
    if is_root:
        shutil.chown(directory, "clamav")  # clamd opens the files that c-icap writes
    daemon = ServerProgram([find("c-icap") or "", "-N", "-f", str(directory / "c-icap.conf")], directory / "log", port)
    yield daemon
    daemon.kill(0.2)  # it takes seconds to end itself
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def c_icap(clamd):
    """A local ICAP server with a clamd behind it."""
    with running_c_icap(clamd.port) as daemon:
        yield daemon


@contextmanager
def running_spamd(rules: str = "", plugins: tuple[str, ...] = ()) -> Iterator[ServerProgram]:
    """With its own rules, and these, without network."""
    need("spamd")
    directory, port = Path(tempfile.mkdtemp(prefix="spamd-")), free_port()
    directory.chmod(0o755)
    loaded = "".join(f"loadplugin Mail::SpamAssassin::Plugin::{plugin}\n" for plugin in ("Check", *plugins))
    (directory / "lab.pre").write_text(loaded)
    (directory / "lab.cf").write_text(
        "required_score 5.0\nuse_bayes 0\n"
        "body LAB_WORD /xyzzy/\nscore LAB_WORD 3.5\nbody LAB_WORSE /plugh/\nscore LAB_WORSE 10\n"
        "header LAB_GOOD Subject =~ /thanks/\nscore LAB_GOOD -4\n"
        "header LAB_RELAY X-Spam-Relays-External =~ /ip=192\\.0\\.2\\.9 /\nscore LAB_RELAY 0.1\n"
        "header LAB_EVIL exists:Evil\nscore LAB_EVIL 0.1\n" + rules
    )
    options = [f"--configpath={directory}", f"--siteconfigpath={directory}", "-L", "-x", "-m", "2", "--syslog=stderr"]
    if os.geteuid() == 0:
        options += ["-u", "nobody"]
    daemon = ServerProgram([find("spamd") or "", *options, "-i", "127.0.0.1", "-p", str(port)], directory / "log", port)
    yield daemon
    daemon.kill()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def spamd():
    """A local spamd with three rules."""
    with running_spamd() as daemon:
        yield daemon
