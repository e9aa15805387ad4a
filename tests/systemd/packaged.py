"""Inside a fresh machine: the Debian package from installation to removal, recorded as in trial.py.

Unlike there the steps are one story: each goes on where the one before it ended, and the first failure ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bridge.testing import Background, NextHop, SmtpClient
from tests.systemd.inside import (
    BRIDGE,
    CONFIG,
    ETC,
    Load,
    command,
    journal,
    send,
    show,
    status,
    systemctl,
    until,
    user_of,
)

TRIAL = Path("/opt/trial")
UNITS = ["scanbridge.service", "scanbridge.socket", "scanbridge-scanner.service", "scanbridge-scanner.socket"]
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


def installed(next_hop: NextHop) -> str:
    assert not Path("/opt/scanbridge").exists() and not ETC.exists(), "the root is not fresh"
    begun = time.monotonic()
    dpkg("-i", str(TRIAL / "old.deb"))
    took = time.monotonic() - begun
    assert systemctl("is-enabled", *UNITS).split() == ["enabled"] * 4
    assert systemctl("is-active", *UNITS).split() == ["active"] * 4
    modules = "import psycopg, obstore, dkim, opentelemetry.sdk, uvloop"
    command("/opt/scanbridge/bin/python3", "-c", modules)
    reply = mail(b"too early")
    assert reply.startswith("451"), reply
    return f"`dpkg -i` took {took:.0f} s; units enabled and running; with no next hop yet, a mail gets {reply[:9]}"


def one_edit(next_hop: NextHop) -> str:
    CONFIG.write_text(CONFIG.read_text().replace("smtp://127.0.0.1:10026", next_hop.url))
    systemctl("restart", BRIDGE)
    checked = command("scanbridge", "check", "-c", str(CONFIG), check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (reply := mail(b"passes")).startswith("250"), reply
    (arrived,) = next_hop.mails
    assert b"X-Scan-Decision: deliver" in arrived.content and user_of(show("MainPID")) != 0
    spam, virus = mail(GTUBE), mail(EICAR)
    assert spam.startswith("550 5.7.1") and virus.startswith("250") and len(next_hop.mails) == 1, (spam, virus)
    return (
        "`relay.next_hop` edited, restarted: `scanbridge check` finds no problem, a mail passes through bridge and "
        f"scanning service to the next hop, GTUBE gets {spam[:9]}, EICAR is quarantined"
    )


def upgrade(next_hop: NextHop) -> str:
    edited, token, process = CONFIG.read_text(), (ETC / "api-token").read_text(), show("MainPID")
    with Load(4) as load:
        until(lambda: len(load.accepted) > 20, "mail to flow", 60)
        begun = time.monotonic()
        dpkg("-i", str(TRIAL / "new.deb"))
        took = time.monotonic() - begun
        assert show("MainPID") != process and status()["ready"], "it was not restarted"
        # Not the time of `dpkg`: on a busy machine, it unpacks for a minute.
        stops = stop_times()
        assert min(stops) > 0 and max(stops) < 20, f"{stops}: a daemon waited for mail that nobody finishes"
        done = len(load.accepted)
        until(lambda: len(load.accepted) > done + 20, "mail to flow again", 60)
    assert CONFIG.read_text() == edited and (ETC / "api-token").read_text() == token
    assert not load.lost(next_hop) and load.seen["refused"] == 0, load.seen
    others = {what: count for what, count in load.seen.items() if what not in ("250", "refused")}
    return (
        f"`dpkg -i` of the next version took {took:.0f} s: configuration and token kept, daemons restarted "
        f"(each stopped within {max(stops):.1f} s); "
        f"{len(load.accepted)} mails accepted and all arrived, 0 connections refused, "
        f"told to try again: {sum(others.values())}"
    )


def stop_times() -> list[float]:
    """How long each daemon took to stop when it was last restarted."""
    units, names = ("scanbridge-scanner.service", BRIDGE), ("ActiveExit", "InactiveEnter")
    moments = [[int(show(f"{name}TimestampMonotonic", unit)) / 1e6 for name in names] for unit in units]
    return [stopped - told for told, stopped in moments]


def removed(next_hop: NextHop) -> str:
    dpkg("-r", "scanbridge")
    try:
        send()
    except ConnectionRefusedError:
        pass
    else:
        raise AssertionError("something still listens")
    assert next_hop.url in CONFIG.read_text() and not Path("/opt/scanbridge").exists()
    said = dpkg("-P", "scanbridge")
    (kept,) = Path("/var/lib/private/scanbridge").rglob("*.eml")
    assert (
        "/var/lib/private/scanbridge was not removed, because it contains mail" in said
        and not ETC.exists()
        and kept.exists()
    )
    assert not systemctl("list-unit-files", "--no-legend", "scanbridge*", check=False)
    return (
        "removed: sockets closed, configuration kept; purged: nothing is left but the quarantined mail, whose path is "
        "printed"
    )


def by_ansible(next_hop: NextHop) -> str:
    done, first = play(next_hop), CONFIG.read_text()
    assert " failed=0 " in done, done
    assert "reload succeeded" in journal(), "the role's first configuration was not reloaded"
    reply = mail(b"by Ansible")
    assert reply.startswith("250"), reply
    assert systemctl("is-enabled", *UNITS).split() == ["enabled"] * 4
    again = play(next_hop)
    assert " changed=0 " in again and " failed=0 " in again, again
    process = show("MainPID")
    assert " failed=0 " in play(next_hop, admission={"max_in_processing": 7}) and show("MainPID") == process
    assert status()["max_in_processing"] == 7, "the new configuration is not in effect"
    second = CONFIG.read_text()
    assert " failed=1 " in play(next_hop, no_such_key=1) and CONFIG.read_text() == second != first
    restarted = play(next_hop, log={"format": "json"})
    assert " failed=0 " in restarted and show("MainPID") != process, restarted
    assert (later := mail(b"after a restart")).startswith("250"), later
    return (
        f"the role of deploy/ansible installs it, and a mail passes ({reply[:3]}); a second run changes nothing; a new "
        "configuration is reloaded in the same process; one with a mistake makes the play fail and is not installed; "
        "one that a reload cannot apply causes a restart"
    )


def play(next_hop: NextHop, **settings: object) -> str:
    """Apply the role as if from another machine; returns Ansible's output."""
    config = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "api-token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025", "profile": "postfix-proxy"}],
        "relay": {"next_hop": next_hop.url, "tls": "none"},
        **settings,
    }
    variables = {
        "ansible_become": False,
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "scanbridge_config": config,
        "scanbridge_package": str(TRIAL / "new.deb"),
    }
    inventory = {"mailservers": {"hosts": {"localhost": {}}, "vars": variables}}
    (TRIAL / "inventory.json").write_text(json.dumps(inventory))
    words = ["-m", "ansible", "playbook", "-i", str(TRIAL / "inventory.json"), str(TRIAL / "role/playbook.yml")]
    environment = ["env", f"PYTHONPATH={TRIAL}/ansible", "LC_ALL=C.UTF-8", "/usr/bin/python3"]
    done = command(*environment, *words, check=False, timeout_s=300)
    return done.stdout + done.stderr


STORY: list[tuple[str, Callable[[NextHop], str]]] = [
    ("the Debian package, installed", installed),
    ("the Debian package, after one edit", one_edit),
    ("the Debian package, upgraded under load", upgrade),
    ("the Debian package, removed and purged", removed),
    ("the Debian package, by Ansible", by_ansible),
]


def dpkg(*words: str) -> str:
    done = command("dpkg", "--force-unsafe-io", *words, timeout_s=300)  # no need to survive a power cut here
    return done.stdout + done.stderr


def mail(body: bytes) -> str:
    with SmtpClient(10025, timeout_s=60) as client:
        client.open()
        return client.mail(b"Subject: x\r\n\r\n" + body + b"\r\n").decode()


def main() -> int:
    background, next_hop = Background(), NextHop()
    background.run(next_hop.start())
    with (TRIAL / "results/results.jsonl").open("w") as results:
        for name, work in STORY:
            begun = time.monotonic()
            try:
                seen, ok = work(next_hop), True
            except Exception as exc:
                seen, ok = f"{type(exc).__name__}: {exc}"[:600], False
                print("---", name, seen, journal()[-2000:], journal("scanbridge-scanner")[-1000:], sep="\n", flush=True)
            row = {"name": name, "ok": ok, "seen": seen, "seconds": round(time.monotonic() - begun, 1)}
            results.write(json.dumps(row) + "\n")
            results.flush()
            if not ok:
                return 1
    (TRIAL / "results/finished").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
