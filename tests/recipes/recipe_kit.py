"""A recipe of deploy/ set up from its files, run through every case, and compared with its documentation.

    with Setting("postfix-proxy", tmp_path, service) as setting, SomeServer(setting) as server:
        agree(setting, play(setting, server))

`Setting` has the recipe's files on private ports, the bridge, the `Service` (a real one, whose rules give a different
decision to each mail) and a `Destination` behind everything. `play` sends one mail for each `Case` through the mail
server and looks where it ends up. `agree` compares that with the table in the recipe's README.md and its row in
docs/operate/recipes.md; with RECIPES=write in the environment it writes them instead.
"""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

import yaml

from bridge.cli.check.finding import Finding
from bridge.config import model
from bridge.config.model import Config
from bridge.testing import TOKEN
from tests.chain import Destination, Program, dialogue, free_port, until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class Case(StrEnum):
    """In the order of the test: after the first failure, mail may be left in a queue."""

    DELIVER = "deliver"
    BOUNCE = "bounce"
    DROP = "drop"
    QUARANTINE = "quarantine"
    UNDECIDED = "undecided"
    SATURATED = "saturated"
    DEAD = "bridge not running"

    @property
    def sender(self) -> str:
        """Identifies the mail in a queue."""
        return f"{self.name.lower()}@example.org"

    @property
    def marker(self) -> str:
        """Identifies the mail everywhere else."""
        return f"mark-{self.name.lower()}-mark"


GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X\r\n"
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$" + b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*\r\n"
_BODIES = {
    Case.BOUNCE: GTUBE,
    Case.DROP: b"http://name@drop.example/\r\n",  # url:userinfo
    Case.QUARANTINE: EICAR,
    Case.UNDECIDED: b"http://192.0.2.1/\r\n",  # url:ip-host
}


def mail(case: Case, *fields: str) -> bytes:
    """The mail of this case."""
    head = [f"Subject: {case.marker}", f"From: {case.sender}", "To: b@example.net", *fields]
    head += [f"Message-ID: <{case.marker}@example.org>", "Date: Sun, 1 Nov 2026 10:00:00 +0000"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + _BODIES.get(case, b"Hello\r\n")


def sent(arrived: bytes) -> bytes:
    """What arrived, without the fields that we and the mail servers may add in transit."""
    return re.sub(rb"(?m)^(Received|X-Scan-[A-Za-z]+):.*\r\n([ \t].*\r\n)*", b"", arrived)


class Service:
    """The scanning service; `full()` occupies all its slots."""

    _SLOTS = 4

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        (directory / "service.yml").write_text(_SERVICE.format(port=self.port, token=TOKEN, slots=self._SLOTS))
        self.program = Program(directory, [self.port], "service", "-c", str(directory / "service.yml"))

    def __enter__(self) -> Self:
        self.program.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()

    def is_full(self, status: str) -> bool:
        """Whether the bridge's status page shows that it knows."""
        return '"RED"' in status

    @contextmanager
    def full(self, bridge_port: int) -> Iterator[None]:
        """A request occupies a slot as soon as its head has arrived; these never send their bodies."""
        head = f"POST /v1/messageQueue/submitEmail HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n"
        with ExitStack() as stack:
            for _ in range(self._SLOTS):
                request = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=60))
                request.sendall(head.encode())
            yield


_SERVICE = """\
listen: 127.0.0.1:{port}
guard:
  scanSources: {{restApi: {{}}}}
  maxGuardRequestsInProcessing: {slots}
  guardRequestThrottleThreshold: {slots}
abby: {{serviceProviders: {{core: {{hosts: []}}}}, staticApiTokens: [{{name: bridge, token: {token}}}]}}
decisions:
  rules:
    - {{tags: ["malware:*"], verdict: malware, decision: quarantine}}
    - {{tags: ["spam:gtube"], verdict: spam, decision: bounce}}
    - {{tags: ["url:userinfo"], verdict: unwanted, decision: drop}}
    - {{tags: ["url:ip-host"], verdict: unknown, decision: undecided}}
"""


class Scanner(Protocol):
    """What the bridge asks for decisions: the `Service`, or another scanner that decides in the same way."""

    port: int

    def full(self, bridge_port: int) -> AbstractContextManager[None]:
        """No more mail is scanned."""

    def is_full(self, status: str) -> bool: ...


class Setting:
    """The files of one recipe, moved to private ports; its bridge, and the destination of its mail.

    `scanner` replaces that section of the recipe's bridge.yml.
    """

    def __init__(self, recipe: str, directory: Path, service: Scanner, scanner: dict[str, Any] | None = None) -> None:
        self.recipe, self.directory, self.service = recipe, directory, service
        self.files = DEPLOY / recipe
        self.destination = Destination()
        self.front = free_port()
        self._admin = free_port()
        self._ports = {port: free_port() for port in ("10025", "10026", "10027", "10028")}
        self._ports |= dict.fromkeys(("9081", "11333"), service.port)
        data = yaml.safe_load(self.file("bridge.yml").replace("https://scan.example.org", "http://127.0.0.1"))
        data["scanner"] = scanner or data["scanner"]
        data["scanner"]["status_interval"] = "500ms"  # also its timeout; RED takes the service 100 ms
        data["admin"] = {"address": f"127.0.0.1:{self._admin}"}
        (directory / "api-token").write_text(TOKEN)
        (directory / "api-token").chmod(0o600)
        (directory / "bridge.yml").write_text(yaml.safe_dump(data))
        self.listening = listening = [int(one["address"].rpartition(":")[2]) for one in data["listeners"]]
        self.bridge = Program(directory, [self._admin, *listening], "run", "-c", str(directory / "bridge.yml"))

    def file(self, name: str, recipe: str = "") -> str:
        """One of the recipe's files, on our ports; or one of another recipe's, which this one refers to."""
        return re.sub(
            r"\b(10025|10026|10027|10028|9081|11333)\b",
            lambda m: str(self.port(m[1])),
            (DEPLOY / (recipe or self.recipe) / name).read_text(),
        )

    def port(self, of_the_recipe: str) -> int:
        """Our port for 10025, 10026, 10027 or 10028."""
        return self._ports[of_the_recipe]

    def __enter__(self) -> Self:
        self.destination.__enter__()
        self.bridge.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bridge.kill()
        self.destination.__exit__()

    def status(self) -> str:
        """The bridge's status page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin}/status", timeout=60) as page:
            return str(page.read().decode())

    def problems(self, check: Callable[[Config, Path], Iterable[Finding]], place: Path) -> list[Finding]:
        """What `scanbridge check` finds wrong with the mail server's settings in this place."""
        return [finding for finding in check(model.load(self.directory / "bridge.yml"), place) if finding.problem]

    def quarantined(self, marker: str) -> list[Path]:
        return [path for path in self.directory.glob("quarantine/*.eml") if marker.encode() in path.read_bytes()]


class MailServer(Protocol):
    """What the tests need of a recipe's mail server; it accepts mail at `setting.front`."""

    def senders(self) -> Mapping[str, str]:
        """The sender of every mail that it has now, and the mail's state: MOVING, WAITING or HELD."""

    def flush(self) -> None:
        """Retry everything that is waiting, now."""


MOVING, WAITING, HELD = "moving", "waiting", "held"


@dataclass(frozen=True)
class Seen:
    """What the client received, and where the mail was then."""

    when: str
    reply: str
    place: str


def play(setting: Setting, server: MailServer, sending: Any = dialogue) -> dict[Case, Seen]:
    """Run the cases in order. `sending` sends a mail to the mail server as a client does."""

    def run(case: Case) -> Seen:
        to, reply = sending(setting.front, mail(case), sender=case.sender)
        return Seen(_WHEN[to], _without_ids(reply), _place(setting, server, case, reply))

    seen = {case: run(case) for case in Case if case not in (Case.SATURATED, Case.DEAD)}
    with setting.service.full(setting.listening[0]):
        until(lambda: setting.service.is_full(setting.status()), "the bridge to know that the service is full")
        seen[Case.SATURATED] = run(Case.SATURATED)
    setting.bridge.kill()
    seen[Case.DEAD] = run(Case.DEAD)
    setting.bridge.start()
    until(lambda: '"GREEN"' in setting.status(), "the bridge to know that the service has room")
    for case in (Case.SATURATED, Case.DEAD):
        if seen[case].place == _QUEUED:
            _comes_in_the_end(setting, server, case)
    assert not [mail for mail in setting.destination.mails if b"MAIL FROM:<>" in b" ".join(mail.commands)], "a bounce"
    return seen


_WHEN = {"MAIL": "MAIL", "RCPT": "RCPT", "DATA": "DATA", ".": "end of data"}
_QUEUED = "waiting in the mail server's queue"


def _without_ids(reply: str) -> str:
    """Queue ids, our ids and the service's ids differ each time."""
    reply = re.sub(r"\b(id|ggrid)=[\w-]+", r"\1=...", reply)
    return re.sub(r"\b(?=[a-zA-Z]*\d)[0-9a-zA-Z]{8,}\b", "...", reply)


def _place(setting: Setting, server: MailServer, case: Case, reply: str) -> str:
    def look() -> list[str]:
        # The queue first: a mail that has left it is already somewhere else.
        state = server.senders().get(case.sender)
        if state == MOVING:
            return []
        found = {
            "delivered": setting.destination.find(case.marker),
            "in our quarantine": setting.quarantined(case.marker),
            _QUEUED: state == WAITING,
            "held by the mail server": state == HELD,
        }
        return [name for name, there in found.items() if there] or [
            "gone" if reply.startswith("2") else "still at the client"
        ]

    def twice() -> list[str]:
        first = look()
        return first if first and first == look() else []

    places = until(twice, f"an end for the mail {case}")
    assert reply.startswith("2") or places == ["still at the client"], f"{case}: {reply}, and yet {places}"
    assert len(setting.destination.find(case.marker)) < 2
    return ", ".join(places)


def _comes_in_the_end(setting: Setting, server: MailServer, case: Case) -> None:
    """Mail that waits in the queue is delivered, once, when the failure is over."""

    def arrived() -> bool:
        if setting.destination.find(case.marker):
            return True
        server.flush()
        return False

    until(arrived, f"the mail {case} to be delivered after all")
    until(lambda: case.sender not in server.senders(), f"the mail {case} to leave the queue")
    assert len(setting.destination.find(case.marker)) == 1


# The tables


def agree(setting: Setting, seen: dict[Case, Seen]) -> None:
    """The recipe's own page and the page of all recipes match what was seen."""
    lines = [f"| {case} | `{result.reply}` | {result.when} | {result.place} |" for case, result in seen.items()]
    head = ["| case | the client receives | at | the mail is |", "|---|---|---|---|"]
    _compare(setting.files / "README.md", "\n".join(head + lines), r"(?m)(?<=<!-- seen -->\n)(\|.*\n)*")
    name = f"| [{setting.recipe}]("
    cells = [f"`{_code(result.reply)}`, {result.place}" for result in seen.values()]
    line = f"{name}../../deploy/{setting.recipe}/README.md) | {' | '.join(cells)} |"
    _compare(ROOT / "docs" / "operate" / "recipes.md", line, rf"(?m)^{re.escape(name)}.*\n")


def _code(reply: str) -> str:
    """For example 451 4.3.2, or only the code if the server sends no enhanced status."""
    found = re.match(r"\d{3}( \d\.\d+\.\d+)?", reply)
    assert found, reply
    return found[0]


def _compare(page: Path, lines: str, pattern: str) -> None:
    text = page.read_text()
    found = re.search(pattern, text)
    assert found, f"{page} has no place for what was seen: a line that begins with {lines[:20]}, or <!-- seen -->"
    if os.environ.get("RECIPES") == "write":
        page.write_text(f"{text[: found.start()]}{lines}\n{text[found.end() :]}")
    else:
        assert found[0] == f"{lines}\n", f"{page} has\n{found[0]}and not what was seen (RECIPES=write):\n{lines}"
