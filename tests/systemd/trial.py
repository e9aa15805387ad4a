"""Inside the machine: one thing after the other is tried on the real units, and noted in results.jsonl.

Each step says in one line what was seen, or fails with what was not. `trial.py WORD...` tries only those
whose name has one of the words in it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bridge.testing import TOKEN, SmtpClient, answer, result
from tests.systemd.inside import (
    ADMIN,
    BRIDGE,
    CONFIG,
    ETC,
    MILTER,
    SMTP,
    Load,
    World,
    command,
    cursor,
    dropped_in,
    journal,
    send,
    show,
    status,
    systemctl,
    unix_send,
    until,
    user_of,
)

RESULTS = Path("/opt/trial/results")
UNITS = Path("/usr/local/lib/systemd/system")
SCANNER = "scanbridge-scanner.service"
STEPS: list[tuple[str, Callable[[World], str]]] = []


def step(name: str) -> Callable[[Callable[[World], str]], Callable[[World], str]]:
    def note(work: Callable[[World], str]) -> Callable[[World], str]:
        STEPS.append((name, work))
        return work

    return note


@step("the machine")
def machine(world: World) -> str:
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    version = systemctl("--version").splitlines()[0]
    return f"{version} as process 1, Debian {Path('/etc/debian_version').read_text().strip()}"


@step("unit files")
def verify(world: World) -> str:
    units = sorted(str(path) for path in UNITS.glob("scanbridge*"))
    found = command("systemd-analyze", "verify", *(unit.replace("@.", "@trial.") for unit in units))
    assert "scanbridge" not in found.stderr, found.stderr[-500:]
    scores = []
    for unit in (BRIDGE, "scanbridge@trial.service", SCANNER):
        line = command("systemd-analyze", "security", "--no-pager", unit).stdout.splitlines()[-1]
        scores.append(re.findall(r"[\d.]+(?= )", line)[-1])
    assert max(map(float, scores)) <= 1.2, scores
    return f"`systemd-analyze verify` is silent about {len(units)} units; exposure {', '.join(scores)}"


@step("start and notify")
def start(world: World) -> str:
    begun = time.monotonic()
    systemctl("start", BRIDGE)
    took = time.monotonic() - begun
    assert status()["ready"] and show("SubState") == "running" and show("Type") == "notify"
    assert systemctl("is-active", "scanbridge.socket") == "active"
    return f"`systemctl start` returned after {took:.1f} s, when READY=1 arrived; status: {show('StatusText')}"


@step("credentials, user, state")
def credentials(world: World) -> str:
    systemctl("start", BRIDGE)
    assert send().startswith("250"), "no mail came through"
    assert world.scanner.submissions[-1].authorization == f"Bearer {TOKEN}"
    pid = show("MainPID")
    uid, secret, state = user_of(pid), (ETC / "api-token").stat(), Path("/var/lib/private/scanbridge").stat()
    assert uid != 0 and (secret.st_uid, secret.st_mode & 0o777) == (0, 0o600)
    assert (state.st_uid, state.st_mode & 0o777) == (uid, 0o700)
    assert TOKEN not in Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
    groups = re.findall(
        r"^(?:Cap(?:Eff|Bnd|Amb)|NoNewPrivs|Seccomp):\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M
    )
    assert groups == ["0" * 16, "0" * 16, "0" * 16, "1", "2"], groups
    (ETC / "api-token").write_text(TOKEN[::-1] + "\n")
    systemctl("reload", BRIDGE)
    assert send().startswith("250") and world.scanner.submissions[-1].authorization == f"Bearer {TOKEN}"
    systemctl("restart", BRIDGE)
    assert send().startswith("250") and world.scanner.submissions[-1].authorization == f"Bearer {TOKEN[::-1]}"
    (ETC / "api-token").write_text(TOKEN + "\n")
    return (
        "the token in root's 0600 file reached the scanner, and so did a new one after a restart (not after a reload); "
        f"user {uid}, no capability, state 0700"
    )


@step("the quarantine, by its user")
def operator(world: World) -> str:
    systemctl("start", BRIDGE)
    world.scanner.reply = answer(200, result("quarantine"))
    assert send().startswith("250"), "no mail came through"
    place = ("-p", "DynamicUser=yes", "-p", "User=scanbridge", "-p", "StateDirectory=scanbridge")
    work = ("/opt/scanbridge/bin/scanbridge", "quarantine", "list", "-c", str(CONFIG))
    found = command("systemd-run", "-q", "--wait", "--pipe", *place, *work).stdout
    assert "b@example.org" in found, found
    assert send().startswith("250"), "the daemon can still write to it"
    return "`systemd-run ... scanbridge quarantine list` shows the mail, and the daemon can still write to it"


@step("socket activation")
def activation(world: World) -> str:
    for port in (SMTP, MILTER, ADMIN):
        systemctl("stop", BRIDGE)
        assert systemctl("is-active", BRIDGE, check=False) == "inactive"
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            until(lambda: show("ActiveState") == "active", f"the service, for a client on {port}")
            if port == SMTP:
                sock.settimeout(30)
                assert sock.recv(100).startswith(b"220 ")
    assert "get no answer" not in journal()
    return f"a client on each of {SMTP}, {MILTER} and {ADMIN} caused the service to start, and was served"


@step("reload")
def reload(world: World) -> str:
    systemctl("start", BRIDGE)
    pid = show("MainPID")
    with SmtpClient(SMTP, timeout_s=30) as client:
        client.open()
        world.configure(admission={"max_in_processing": 7})
        systemctl("reload", BRIDGE)
        assert status()["max_in_processing"] == 7 and client.mail().startswith(b"250")
        world.configure(no_such_key=1)
        refused = command("systemctl", "reload", BRIDGE, check=False)
        assert refused.returncode != 0 and status()["max_in_processing"] == 7
        assert client.mail().startswith(b"250")
    assert show("MainPID") == pid and show("ActiveState") == "active"
    return (
        "a new limit is in effect, in the same process and on the same connection; with an invalid file, "
        "`systemctl reload` fails and the old one is kept"
    )


def block_with_a_pipe(world: World, unit: str = BRIDGE) -> None:
    """Replace the configuration by a pipe without a writer: a reload then blocks the event loop."""
    CONFIG.unlink()
    os.mkfifo(CONFIG)
    os.kill(int(show("MainPID")), signal.SIGHUP)
    time.sleep(0.5)
    world.configure()


@step("watchdog")
def watchdog(world: World) -> str:
    with dropped_in(BRIDGE, "WatchdogSec=2s"):
        systemctl("restart", BRIDGE)
        before, since, pid = int(show("NRestarts")), cursor(), show("MainPID")
        time.sleep(4)  # twice the limit: a process that feeds the watchdog survives
        assert show("MainPID") == pid and int(show("NRestarts")) == before
        block_with_a_pipe(world)
        begun = time.monotonic()
        reply = send(timeout_s=60)  # waits in the socket's queue until the next process accepts it
        took = time.monotonic() - begun
        assert reply.startswith("250") and show("MainPID") != pid, reply
    log = journal(since=since)
    assert "Watchdog timeout" in log and "Fatal Python error: Aborted" in log and "reload.py" in log
    return (
        "notified, the watchdog does nothing; when the loop was blocked, the process was killed (the log shows where "
        "it was) and restarted: a client that connected in the meantime received its 250 after "
        f"{took:.1f} s (WatchdogSec=2s)"
    )


@step("watchdog, workers")
def workers(world: World) -> str:
    block = Path("/opt/trial/block")
    block.mkdir(exist_ok=True)
    (block / "sitecustomize.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGRTMIN, lambda *_: time.sleep(3600))\n"
    )
    world.configure(workers=2)
    with dropped_in(BRIDGE, "WatchdogSec=3s", f"Environment=PYTHONPATH={block}"):
        systemctl("restart", BRIDGE)
        pid, since, first = show("MainPID"), cursor(), {worker["pid"] for worker in status()["workers"]}
        victim = min(first)
        os.kill(victim, signal.SIGRTMIN)
        until(lambda: not Path(f"/proc/{victim}").exists(), "the blocked worker's end")
        until(lambda: len({worker["pid"] for worker in status()["workers"]} - {victim}) == 2, "another worker")
        assert show("MainPID") == pid and send().startswith("250")
        log = journal(since=since)
        assert f"worker {victim} is not responding" in log and "sitecustomize.py" in log
        world.configure(workers=2)
        CONFIG.rename(ETC / "kept")
        os.mkfifo(CONFIG)
        os.kill(int(pid), signal.SIGHUP)
        time.sleep(0.5)
        (ETC / "kept").rename(CONFIG)
        until(lambda: show("MainPID") not in ("0", pid) and show("ActiveState") == "active", "the next supervisor")
        assert send().startswith("250")
    world.configure()
    return (
        "when a worker's loop was blocked, the supervisor killed and replaced it; when the supervisor was blocked, "
        "systemd did"
    )


@step("drain")
def drain(world: World) -> str:
    with dropped_in(BRIDGE, "TimeoutStopSec=2s"):
        systemctl("restart", BRIDGE)
        world.slow_scanner(5)
        replies: list[str] = []
        sending = threading.Thread(target=lambda: replies.append(send()))
        sending.start()
        until(lambda: world.scanner.in_flight, "the mail at the scanner")
        begun = time.monotonic()
        systemctl("stop", BRIDGE)
        took = time.monotonic() - begun
        sending.join(30)
    assert replies[0].startswith("250"), replies
    assert (show("Result"), show("ExecMainStatus")) == ("success", "0")
    return (
        f"`systemctl stop` took {took:.1f} s: the mail that was being processed received its 250 "
        "(TimeoutStopSec=2s: the daemon had asked for more)"
    )


def restarts(load: Load, count: int, *how: str) -> None:
    for _ in range(count):
        done = len(load.accepted)
        until(lambda done=done: len(load.accepted) > done + 20, "mail to flow", 60)
        command("systemctl", *how, BRIDGE)
    done = len(load.accepted)
    until(lambda: len(load.accepted) > done + 20, "mail to flow again", 60)


@step("restart under load")
def restart(world: World) -> str:
    systemctl("restart", BRIDGE)
    with Load() as load:
        restarts(load, 3, "restart")
    assert not load.seen["refused"] and not load.lost(world.next_hop), load.seen
    systemctl("stop", "scanbridge.socket", BRIDGE)
    systemctl("mask", "--runtime", "scanbridge.socket")
    systemctl("start", BRIDGE)
    try:
        with Load() as bare:
            restarts(bare, 1, "restart")
    finally:
        systemctl("stop", BRIDGE)
        systemctl("unmask", "--runtime", "scanbridge.socket")
    assert bare.seen["refused"] and not bare.lost(world.next_hop)
    seen = (
        f"{len(load.accepted)} mails accepted and all arrived, {load.seen['421'] + load.seen['cut']} sessions told 421"
    )
    return (
        f"3 restarts, {seen}, 0 connections refused (1 restart without the socket unit: {bare.seen['refused']} refused)"
    )


@step("kill -9 under load")
def kill(world: World) -> str:
    systemctl("restart", BRIDGE)
    with Load() as load:
        restarts(load, 2, "kill", "-s", "KILL")
    assert not load.seen["refused"] and not load.lost(world.next_hop), load.seen
    return f"killed twice: {len(load.accepted)} mails accepted and all arrived, 0 connections refused"


@step("memory limit")
def memory(world: World) -> str:
    systemctl("restart", BRIDGE)
    with ExitStack() as stack:
        big = [threading.Thread(target=send, args=("big", 30_000_000)) for _ in range(10)]
        for thread in big:
            thread.start()
            stack.callback(thread.join, 120)
    held = int(show("NRestarts"))
    # A mail that is still arriving moves to the disk at three quarters of memory_per_mail: 35 MB stay in memory.
    limits = {"admission": {"max_bytes_in_processing": "1GiB"}, "spool": {"memory_per_mail": "49MiB"}}
    world.configure(**limits)
    replies: list[str] = []
    with dropped_in(BRIDGE, "MemoryMax=200M", "MemorySwapMax=0"):
        systemctl("restart", BRIDGE)
        before = int(show("NRestarts"))
        world.slow_scanner(20)

        def attempt() -> None:
            try:
                replies.append(send("huge", 35_000_000))
            except OSError as exc:
                replies.append(type(exc).__name__)

        attempts = [threading.Thread(target=attempt) for _ in range(12)]
        for thread in attempts:
            thread.start()
        until(lambda: int(show("NRestarts")) > before, "the kernel's end of it", 60)
        how = "oom-kill" if "oom-kill" in journal() else "signal 9"
        world.quick_scanner()
        for thread in attempts:
            thread.join(90)
        until(lambda: show("ActiveState") == "active", "the next one")
        arrived = sum(b"Subject: huge" in mail.content for mail in world.next_hop.mails)
        assert sum(reply.startswith("250") for reply in replies) <= arrived, replies
        world.configure()
        systemctl("restart", BRIDGE)
        assert send().startswith("250")
    assert held == 0
    return (
        "ten mails of 30 MB at once stay within the unit's 1G; with MemoryMax=200M and twelve mails of 35 MB kept in "
        f"memory it was killed ({how}) and restarted, and no mail was answered with 250 that had not arrived"
    )


@step("wrong configuration")
def wrong(world: World) -> str:
    systemctl("stop", BRIDGE)
    good = CONFIG.read_text()
    CONFIG.write_text(good + "no_such_key: 1\n")
    assert command("systemctl", "start", BRIDGE, check=False).returncode != 0
    assert show("ExecMainStatus") == "78" and show("NRestarts") == "0"
    since, replies = cursor(), []
    waiting = threading.Thread(target=lambda: replies.append(send(timeout_s=90)))
    waiting.start()
    until(lambda: "no_such_key" in journal(since=since), "another try", 60)
    time.sleep(8)
    starts = journal(since=since).count("no_such_key")
    assert starts <= 3, starts
    CONFIG.write_text(good)
    waiting.join(60)
    assert replies and replies[0].startswith("250"), replies
    return (
        f"exit code 78, no restart; a waiting client causes further attempts to start it ({starts - 1} in 8 s), "
        "and receives its 250 once the file is corrected"
    )


@step("several instances")
def instances(world: World) -> str:
    users = set()
    for name in ("one", "two"):
        place = f"/run/scanbridge/{name}"
        listeners = [{"name": "mx", "address": f"unix:{place}/smtp.sock"}]
        milter = {
            "name": "m",
            "protocol": "milter",
            "profile": "postfix-milter",
            "address": f"unix:{place}/milter.sock",
        }
        admin = {"address": f"unix:{place}/admin.sock"}
        world.configure(ETC / name / "bridge.yml", listeners=[*listeners, milter], admin=admin)
        (ETC / name / "api-token").write_text(TOKEN + "\n")
        systemctl("start", f"scanbridge@{name}.socket")
        assert unix_send(f"{place}/smtp.sock").startswith("250")
        users.add(user_of(show("MainPID", f"scanbridge@{name}.service")))
        systemctl("reload", f"scanbridge@{name}.service")
        assert (
            Path(f"{place}/smtp.sock").stat().st_mode & 0o777 == 0o660
            and Path(f"{place}/smtp.sock").group() == "scanbridge"
        )
    systemctl("stop", "scanbridge@one.service", "scanbridge@one.socket")
    assert unix_send("/run/scanbridge/two/smtp.sock").startswith("250") and len(users) == 2
    state = sorted(path.name for path in Path("/var/lib/private/scanbridge-instances").iterdir())
    systemctl("stop", "scanbridge@two.service", "scanbridge@two.socket")
    return f"two, each with its own user, sockets, token and state ({', '.join(state)}); one stops, the other continues"


@step("the scanning service")
def scanning(world: World) -> str:
    (ETC / "service-token").write_text(TOKEN + "\n")
    (ETC / "service.yml").write_text(
        "listen: 127.0.0.1:9081\nguard: {scanSources: {restApi: {}}}\n"
        "abby:\n  serviceProviders: {core: {hosts: []}}\n"
        "  staticApiTokens: [{name: bridge, token_file: service-token, permissions: [scan, status]}]\n"
    )
    systemctl("start", "scanbridge-scanner.socket")
    world.configure(scanner={"urls": ["http://127.0.0.1:9081"], "token_file": "api-token"})
    mail = Path("/tmp/mail.eml")
    mail.write_bytes(b"Subject: x\r\n\r\nx\r\n")
    scan = ("/opt/scanbridge/bin/scanbridge", "scan", "-c", str(CONFIG), str(mail))
    found = command(*scan).stdout
    assert "deliver" in found, found
    systemctl("restart", BRIDGE)
    with Load(4) as load:
        until(lambda: len(load.accepted) > 20, "mail to flow", 60)
        pid, text = show("MainPID", SCANNER), (ETC / "service.yml").read_text()
        for change, outcome in (("records: {retention: 7d}\n", "reload succeeded"), ("nonsense: 1\n", "reload failed")):
            (ETC / "service.yml").write_text(text + change)
            systemctl("reload", SCANNER)
            until(lambda said=outcome: said in journal(SCANNER), outcome, 60)
        (ETC / "service.yml").write_text(text)
        assert show("MainPID", SCANNER) == pid and show("ActiveState", SCANNER) == "active"
        assert not load.seen["451"], "a reload must not defer mail"
        systemctl("restart", SCANNER)
        done = len(load.accepted)
        until(lambda: len(load.accepted) > done + 20, "mail to flow again", 60)
    deferred = load.seen["451"]
    assert not load.lost(world.next_hop) and show("Result", SCANNER) == "success"
    uid = user_of(show("MainPID", SCANNER))
    assert uid != 0
    systemctl("stop", BRIDGE, SCANNER, "scanbridge-scanner.socket")
    accepted = len(load.accepted)
    return (
        f"started by its socket, as user {uid}; two reloads (one of them with a mistake) and a restart under load: "
        f"{accepted} mails accepted, {deferred} deferred"
    )


def main() -> int:
    words = sys.argv[1:]
    world = World()
    with (RESULTS / "results.jsonl").open("w") as results:
        for name, work in STEPS:
            if words and not any(word in name for word in words):
                continue
            begun = time.monotonic()
            try:
                seen, ok = work(world), True
            except Exception as exc:
                seen, ok = f"{type(exc).__name__}: {exc}"[:600], False
                units = systemctl("--failed", "--no-pager", "--plain")
                print(
                    "---",
                    name,
                    seen,
                    journal()[-2000:],
                    journal("scanbridge*.socket")[-500:],
                    units,
                    sep="\n",
                    flush=True,
                )
            row = {"name": name, "ok": ok, "seen": seen, "seconds": round(time.monotonic() - begun, 1)}
            results.write(json.dumps(row) + "\n")
            results.flush()
            world.quick_scanner()
            world.configure()
            systemctl("stop", BRIDGE, check=False)
            systemctl("reset-failed", check=False)
    (RESULTS / "finished").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
