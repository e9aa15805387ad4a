"""`make test` and `make run` on machines that have never seen the project: `make test-fresh`. Needs root; two hours.

Each machine is an empty Debian in namespaces of its own: another hostname and time zone, no locale, no journal, no
systemd, the usual limit of 1024 open files. It gets a clone of the last commit and runs the tests twice, because the
second run finds what the first one left. The root is built once and kept in the user's cache; a run works on a
throw-away layer above it. What came of it is written into docs/evidence/trials.md, and the exit code is 0 only if
everything passed. ONLY="user": that machine alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.debian_root import cached_root
from tests.systemd.machine import PAGE, PROJECT, mount_alone, need_root, run

HERE = Path(__file__).parent
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
LIMIT_S = 3 * 3600.0
# How this machine reaches its package indexes; the fresh one is in the same network.
NETWORK = re.compile(r"(pip|uv|npm_config)_\w+|\w+_proxy|ssl_cert_file|node_extra_ca_certs", re.IGNORECASE)
MAIL = 'import smtplib; smtplib.SMTP("127.0.0.1", 10025).sendmail("a@example.org", "b@example.org", "Subject: x")'


@dataclass(frozen=True)
class Step:
    name: str
    command: str
    user: str = "wanda"
    has_network: bool = True
    mask: str = "022"


@dataclass(frozen=True)
class Machine:
    title: str
    steps: list[Step]
    suite: str = "bookworm"


@dataclass(frozen=True)
class Result:
    machine: str
    step: str
    passed: bool
    seen: str
    seconds: float


RUN = f"""
make run >~/output 2>&1 &
for _ in $(seq 600); do ! grep -q 'is running' ~/output || break; sleep 0.1; done
python3 -c '{MAIL}'
find ~/.local/state/scanbridge-demo/Maildir/new -type f | grep -q . && echo the mail is in the Maildir
"""
TEST = "make test"
# What tests/pythons.py prints is the result; its log disappears with the machine.
SHOW = "grep -v ^SKIPPED build/pythons/{0}.log | tail -n 150"
PYTHONS = f"make setup && .venv/bin/python -m tests.pythons {{0}} || {{{{ {SHOW}; false; }}}}"
MACHINES = {
    "user": Machine(
        "a user, with Python and make only",
        [
            Step("make test", TEST),
            Step("make test again, without network and IPv6", TEST, has_network=False),
            Step("make run, and a mail", RUN, has_network=False),
        ],
    ),
    "servers": Machine(
        "a user, with all servers; files are private (umask 077)",
        [
            Step("deploy/test-servers.sh as root", "deploy/test-servers.sh", "root"),
            Step("make test", TEST, mask="077"),
            Step("make test again", TEST, mask="077"),
        ],
    ),
    "root": Machine(
        "root, with CI=true: nothing may be skipped",
        [Step("make test", f"CI=true {TEST}", "root"), Step("make test again", f"CI=true {TEST}", "root")],
    ),
    "testing": Machine(
        "root, Debian testing",
        [Step("the unit tests on its Python", PYTHONS.format("3.14"), "root")],
        "testing",
    ),
}
DEFAULT = ["user", "servers", "root"]  # `make test-pythons` uses the others


def main() -> int:
    need_root()
    mount_alone()
    only = sys.argv[1:] or DEFAULT
    results = [result for name in only for result in run_machine(MACHINES[name])]
    if only == DEFAULT:
        write_page(results)
    failed = [result for result in results if not result.passed]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def run_machine(machine: Machine) -> Iterator[Result]:
    title = machine.title
    with layer(cached_root("machine", machine.suite)) as place:
        checkout = install(place / "root", machine.steps[-1].user)
        for number, step in enumerate(machine.steps):
            began, log = time.monotonic(), place / f"output-{number}"
            code = enter(place / "root", checkout, step, log)
            output = log.read_text(errors="replace")
            result = Result(title, step.name, code == 0, summary(output), time.monotonic() - began)
            print(f"{'passes' if result.passed else 'FAILS '} {title}: {step.name}: {result.seen}", flush=True)
            if not result.passed:
                print(output[-8000:])
            yield result


@contextmanager
def layer(root: Path) -> Iterator[Path]:
    """A directory with `root`, an overlay whose changes are discarded with it. Not in /tmp: some GB are written."""
    with tempfile.TemporaryDirectory(prefix="machine-", dir=root.parent) as name:
        place = Path(name)
        for directory in ("upper", "work", "root"):
            (place / directory).mkdir()
        (place / "upper").chmod(0o755)
        options = f"lowerdir={root},upperdir={place}/upper,workdir={place}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", options, f"{place}/root"])
        try:
            yield place
        finally:
            run(["umount", f"{place}/root"])


def install(root: Path, user: str) -> str:
    """A clone in the user's home, or where others can read root's, and what this network needs: names, certificates."""
    if user != "root":
        run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", user])
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy(f"/{CERTIFICATES}", root / CERTIFICATES)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    home = "/srv" if user == "root" else f"/home/{user}"
    run(["git", "clone", "--quiet", str(PROJECT), f"{root}{home}/project"])
    run(["chroot", str(root), "chown", "-R", f"{user}:{user}", f"{home}/project"])
    return f"{home}/project"


def enter(root: Path, directory: str, step: Step, log: Path) -> int:
    """Run the step's command in the machine; its exit code."""
    spaces = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"]
    spaces += [] if step.has_network else ["--net"]
    command = ["unshare", *spaces, str(HERE / "enter.sh"), str(root), step.user, directory, step.command]
    environment = {name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)}
    environment |= {"PATH": os.environ["PATH"], "MASK": step.mask, "NETWORK": "yes" if step.has_network else ""}
    if processes := os.environ.get("TEST_PROCESSES"):
        environment["TEST_PROCESSES"] = processes
    with log.open("wb") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False, timeout=LIMIT_S)
    return done.returncode


def summary(output: str) -> str:
    """The last line of pytest, without its time, or the last line."""
    counts = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed).*?) in [\d.]+s", output, re.MULTILINE)
    last = output.strip().splitlines()[-1:]
    return str(counts[-1]) if counts else "".join(last)


def write_page(results: list[Result]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True)
    lines = [
        f"The last run, {time.strftime('%Y-%m-%d')}, of commit {commit.stdout.strip()}:",
        "",
        "| machine | what was run | | what was seen | minutes |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        words = [result.machine, result.step, "passes" if result.passed else "**fails**", result.seen]
        lines.append(f"| {' | '.join(words)} | {result.seconds / 60:.0f} |")
    pattern, text = r"(<!-- fresh -->\n).*?(<!-- fresh: end -->)", PAGE.read_text()
    PAGE.write_text(re.sub(pattern, lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text, flags=re.S))


if __name__ == "__main__":
    sys.exit(main())
