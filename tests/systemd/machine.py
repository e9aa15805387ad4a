"""The units under a real systemd: `make test-systemd`. Needs root, mmdebstrap and util-linux; about two minutes.

A small Debian with systemd as process 1 runs in namespaces of its own: its network, processes, mounts
and control groups are not the machine's. The root is built once and kept in the user's cache; each run
works on a throw-away layer above it. Inside, `trial.py` tries one thing after the other. Then a second
machine, which has never seen us, gets the Debian package (`packaged.py`). What came of it is written into
docs/evidence/trials.md, and the exit code is 0 only if everything holds. `ONLY="package"`: the second machine alone;
other words: the steps of the first that have them in their name.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
PAGE = PROJECT / "docs" / "evidence" / "trials.md"
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-apt,python3-venv,procps,iproute2"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
SITE = "opt/scanbridge/lib/python3.11/site-packages"
LIMIT_S = 600.0


def main() -> int:
    need_root()
    mount_alone()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a normal exit, so that everything is cleaned up
    only = sys.argv[1:]
    root = cached_root()
    found: list[dict[str, object]] = []
    finished = True
    if only != ["package"]:
        found, finished = run_machine(root, lambda top: install(top, only))
    if not only or only == ["package"]:
        more, to_the_end = run_machine(root, install_package)
        found, finished = found + more, finished and to_the_end
    if not only and finished:
        write_page(found)
    failed = [step["name"] for step in found if not step["ok"]]
    print(f"{len(found) - len(failed)} hold, {len(failed)} do not" + ("" if finished else "; the trial did not finish"))
    return 0 if finished and found and not failed else 1


def run_machine(root: Path, prepare: Callable[[Path], None]) -> tuple[list[dict[str, object]], bool]:
    """Run one machine: its results, and whether it finished."""
    with layer(root) as (top, results):
        prepare(top)
        boot(top, results)
        noted = results / "results.jsonl"
        found = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
        return found, (results / "finished").exists()


def need_root() -> None:
    if os.geteuid() != 0:
        sys.exit("only root can start a machine")
    if missing := [tool for tool in ("mmdebstrap", "unshare") if shutil.which(tool) is None]:
        sys.exit(f"not installed: {' '.join(missing)} (deploy/test-servers.sh installs them)")


def mount_alone() -> None:
    """Move into a new mount namespace: its mounts disappear with us, however we exit."""
    if os.environ.get("SCANBRIDGE_MACHINE") != str(os.getpid()):
        os.environ["SCANBRIDGE_MACHINE"] = str(os.getpid())
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


# The root


def cached_root() -> Path:
    """Debian with systemd and the libraries that the project needs; built again when those change."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    key = hashlib.sha256(" ".join([PACKAGES, *project["dependencies"]]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanbridge-tests"
    root = cache / f"systemd-bookworm-{key}"
    if not root.exists():
        print("building the machine's root: a minute or two, once")
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=cache, prefix="building-"))
        try:
            build(building)
            for old in cache.glob("systemd-bookworm-*"):
                shutil.rmtree(old, ignore_errors=True)
            building.rename(root)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return root


def build(root: Path) -> None:
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--include={PACKAGES}", "bookworm", str(root)]
    run([*command, *([str(SOURCES)] if SOURCES.exists() else [])])
    run(["chroot", str(root), "python3", "-m", "venv", "--without-pip", "/opt/scanbridge"])
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run([*pip, "wheel", "--no-deps", "-w", wheels, str(PROJECT)])
        tags = [f"manylinux_2_{minor}" for minor in range(17, 37)] + ["manylinux2014"]
        target = ["--python-version", "3.11", "--implementation", "cp", "--only-binary=:all:"]
        for tag in tags:  # wheels that Debian's C library can load, whichever Python runs here
            target += ["--platform", f"{tag}_{platform.machine()}"]
        (wheel,) = Path(wheels).glob("*.whl")
        run([*pip, "install", "--no-compile", "--target", str(root / SITE), *target, str(wheel)])
    script = root / "opt/scanbridge/bin/scanbridge"
    script.write_text("#!/opt/scanbridge/bin/python3\nimport sys\nfrom bridge.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    run(["chroot", str(root), "python3", "-m", "compileall", "-q", f"/{SITE}"])


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} ...: exit code {done.returncode}\n{done.stdout[-2000:]}")


@contextmanager
def layer(root: Path) -> Iterator[tuple[Path, Path]]:
    """An overlay on the root: changes of the run are discarded with it."""
    with tempfile.TemporaryDirectory(prefix="scanbridge-machine-") as name:
        place = Path(name)
        for directory in ("upper", "work", "root", "results"):
            (place / directory).mkdir()
        (place / "upper").chmod(0o755)
        options = f"lowerdir={root},upperdir={place}/upper,workdir={place}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", options, f"{place}/root"])
        try:
            yield place / "root", place / "results"
        finally:
            run(["umount", f"{place}/root"])


def install(root: Path, only: list[str]) -> None:
    """The project as it is now: the package, the units, the trial."""
    package = root / SITE / "bridge"
    shutil.rmtree(package)
    shutil.copytree(PROJECT / "bridge", package, ignore=shutil.ignore_patterns("__pycache__"))
    run(["chroot", str(root), "python3", "-m", "compileall", "-q", f"/{SITE}/bridge"])
    for source, place in ((".", "systemd/system"), ("sysusers.d", "sysusers.d"), ("tmpfiles.d", "tmpfiles.d")):
        (root / "usr/local/lib" / place).mkdir(parents=True)
        for unit in (PROJECT / "systemd" / source).glob("scanbridge*"):
            shutil.copy(unit, root / "usr/local/lib" / place)
    trial(root, f"/opt/scanbridge/bin/python3 /opt/trial/trial.py {' '.join(only)}")


def install_package(root: Path) -> None:
    """A fresh machine and two versions of the Debian package; the trial uses a separate Python."""
    place = root / "opt/trial"
    place.mkdir()
    run(["mv", str(root / "opt/scanbridge"), str(place / "venv")])
    package = place / SITE.replace("opt/scanbridge", "venv") / "bridge"
    shutil.rmtree(package)
    shutil.copytree(PROJECT / "bridge", package, ignore=shutil.ignore_patterns("__pycache__"))
    with tempfile.TemporaryDirectory() as out:
        build = [sys.executable, str(PROJECT / "deploy/package/build.py"), "--only", "deb", "--out", out]
        run([*build, "--version", "0.0.1", "--version", "0.0.2"])
        old, new = sorted(Path(out).glob("*.deb"))
        shutil.copy(old, place / "old.deb")
        shutil.copy(new, place / "new.deb")
    shutil.copytree(PROJECT / "deploy/ansible", place / "role")
    target = ["--python-version", "3.11", "--python-platform", f"{platform.machine()}-manylinux_2_34"]
    uv = str(Path(sys.executable).with_name("uv"))
    run([uv, "pip", "install", "--quiet", "--target", str(place / "ansible"), *target, "ansible-core"])
    trial(root, "/opt/trial/venv/bin/python3 /opt/trial/packaged.py")


def trial(root: Path, command: str) -> None:
    """The service that runs the trial and then shuts the machine down."""
    place = root / "opt/trial"
    (place / "results").mkdir(parents=True)
    modules = place / "tests/systemd"  # they import each other by these names
    modules.mkdir(parents=True)
    for source in HERE.glob("*.py"):
        shutil.copy(source, place)
        shutil.copy(source, modules)
    (root / "etc/systemd/system/trial.service").write_text(TRIAL.format(command=command))
    run(["chroot", str(root), "systemctl", "enable", "trial.service"])
    run(["chroot", str(root), "systemctl", "mask", "systemd-remount-fs.service", "systemd-networkd.service"])


TRIAL = """\
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart={command}
ExecStopPost=/bin/kill -s RTMIN+14 1
Environment=HOME=/root PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/trial
StandardOutput=file:/opt/trial/results/output
StandardError=inherit
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""


# Control groups: a separate one in each hierarchy, as the root for the machine's systemd


def boot(root: Path, results: Path) -> None:
    layout, places = control_groups(f"scanbridge-{os.getpid()}")

    def join() -> None:
        for place in places:
            (place / "cgroup.procs").write_text(str(os.getpid()))

    spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child=KILL"]
    command = ["unshare", *spaces, str(HERE / "boot.sh"), str(root), str(results), layout]
    with (results / "console").open("wb") as console:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, preexec_fn=join
        )
        try:
            follow(process, results)
        finally:
            process.kill()
            process.wait()
            for place in places:
                remove(place)
    for name in ("console", "output"):  # empty if everything worked
        if (results / name).exists() and (text := (results / name).read_text(errors="replace")):
            print(f"--- {name}\n{text[-6000:]}")


def control_groups(name: str) -> tuple[str, list[Path]]:
    """The layout for boot.sh, and our groups. Version 1 where the machine has it, else version 2."""
    ours = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        places = [top / name]
        layout = "unified"
        for controller in ("memory", "pids"):
            (top / "cgroup.subtree_control").write_text(f"+{controller}")
    else:
        controllers = [controller for controller in ("memory", "pids") if controller in ours]
        layout = ",".join(controllers)
        places = [top / controller / ours[controller].lstrip("/") / name for controller in controllers]
        places += [top / "systemd" / name, top / "unified" / name]
    for place in places:
        place.mkdir()
    return layout, places


def remove(place: Path) -> None:
    end = time.monotonic() + 10
    while place.exists():
        for group in sorted((path for path in place.rglob("*") if path.is_dir()), reverse=True):
            _try_rmdir(group)
        _try_rmdir(place)
        if time.monotonic() > end:
            print(f"could not be removed: {place}")
            return
        time.sleep(0.05)


def _try_rmdir(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:  # a process in it has not exited yet
        pass


def follow(process: subprocess.Popen[bytes], results: Path) -> None:
    """Show the results as they come, until the machine is off."""
    shown, end = 0, time.monotonic() + LIMIT_S
    path = results / "results.jsonl"
    while True:
        over = process.poll() is not None
        lines = path.read_text().splitlines() if path.exists() else []
        for step in map(json.loads, lines[shown:]):
            print(
                f"{'holds ' if step['ok'] else 'FAILS '} {step['seconds']:5.1f} s  {step['name']}: {step['seen']}",
                flush=True,
            )
        shown = len(lines)
        if over or time.monotonic() > end:
            return
        time.sleep(0.2)


# The page


def write_page(found: list[dict[str, object]]) -> None:
    about = next(str(step["seen"]) for step in found if step["name"] == "the machine")
    lines = [
        f"The last run, {time.strftime('%Y-%m-%d')}: {about}.",
        "",
        "| what was tried | | what was seen |",
        "|---|---|---|",
    ]
    for step in found:
        if step["name"] != "the machine":
            lines.append(f"| {step['name']} | {'holds' if step['ok'] else '**fails**'} | {step['seen']} |")
    text = PAGE.read_text()
    new = re.sub(
        r"(<!-- trial -->\n).*?(<!-- end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S
    )
    PAGE.write_text(new)


if __name__ == "__main__":
    sys.exit(main())
