"""A bridge with two workers, and Debian's Prometheus, which scrapes it twice a second."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from bridge.runtime import yaml_file
from bridge.testing import Background, FakeScanner, NextHop, SmtpClient, answer, free_port, result
from tests.daemon.process_kit import Bridge, get, parts, start, until, write_config
from tests.lists.lists_kit import running_service
from tests.requirements import find, need

ROOT = Path(__file__).parents[2]
MIXIN = ROOT / "deploy" / "mixin"
SCRAPE = "500ms"  # also the timeout of a scrape; a scrape that takes longer leaves a gap
DECISIONS = ("deliver", "quarantine", "bounce", "drop", "undecided")


def promtool(*arguments: str | Path, stdin: str | None = None) -> str:
    """Run promtool and return its output; it must succeed without warnings."""
    need("promtool")
    done = subprocess.run([str(find("promtool")), *map(str, arguments)], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr.strip(), done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A Prometheus that scrapes one bridge, with or without alert rules."""

    def __init__(self, directory: Path, target: int, rules: dict[str, Any] | None, scrape: str) -> None:
        self._port = free_port()
        config: dict[str, Any] = {
            "global": {"scrape_interval": scrape, "evaluation_interval": scrape},
            "scrape_configs": [{"job_name": "scanbridge", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
        }
        if rules is not None:
            (directory / "rules.yml").write_text(yaml_file.dump(rules))
            config["rule_files"] = ["rules.yml"]
        file = directory / "prometheus.yml"
        file.write_text(yaml_file.dump(config))
        command = [str(find("prometheus")), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{self._port}"], stdout=log, stderr=log
            )
        until(lambda: get(self._port, "/-/ready")[0] == 200, "Prometheus to be ready", 30)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data that the HTTP API returns."""
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=60) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=expression)["result"])

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """The result of this query as soon as it is not empty: on a busy machine there are gaps between scrapes."""
        found: list[dict[str, Any]] = until(lambda: self.query(expression), expression, 60)
        return found

    def alerts(self) -> dict[str, str]:
        """The state of each alert, by name."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self.ask("alerts")["alerts"]}

    def end(self) -> None:
        self._process.kill()
        self._process.wait(60)


@dataclass
class Scene:
    bridge: Bridge
    scanner: FakeScanner
    next_hop: NextHop
    background: Background
    prometheus: Prometheus
    ends: dict[str, float]  # when each listener's certificate expires

    def send(self, decision: str = "deliver") -> str:
        with self.bridge.client() as client:
            return client.mail(f"Subject: {decision}\r\n\r\nx\r\n".encode()).decode()

    def every_kind_of_mail(self) -> None:
        """Send mail with each decision, twice, between two scrapes; one client sends only NOOP."""
        self._seen("scanbridge_mails_total")
        for decision in DECISIONS * 2:
            self.send(decision)
        with SmtpClient(self.bridge.port) as client:
            client.say(b"NOOP")
        self._seen('scanbridge_mails_total{action="discard"} > 0')
        self._seen("scanbridge_quarantine_mails")
        self._seen("scanbridge_list_age_seconds")

    @contextmanager
    def load(self, clients: int = 4, pause_s: float = 0.0) -> Iterator[None]:
        """Send mail from several clients at the same time, until the block ends."""
        over = threading.Event()

        def keep_sending() -> None:
            decisions = itertools.cycle((*DECISIONS, *("deliver",) * 15))
            while not over.wait(pause_s):
                self.send(next(decisions))

        threads = [threading.Thread(target=keep_sending) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(60)

    def kill_scanner(self) -> None:
        """Close the port and break open connections."""
        self.scanner.status = None
        self.scanner.reply = _hang_up
        self.background.run(self.scanner.stop())

    def revive_scanner(self) -> None:
        """Listen on the same port again."""
        self.scanner.status = answer(200, b'{"messageQueueStatus": "GREEN"}')
        decide_by_subject(self.scanner)
        self.background.run(self.scanner.start(port=self.scanner.port))

    def _seen(self, expression: str) -> None:
        self.prometheus.wait_for(expression)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


SPEED_UP = 100  # five minutes become three seconds


def accelerated_rules() -> dict[str, Any]:
    """The shipped alert rules, with shorter time ranges."""

    def shorter(match: re.Match[str]) -> str:
        return f"{int(match[1]) * 60_000 // SPEED_UP}ms"

    rules, _ = yaml_file.read(MIXIN / "alerts.yml", (MIXIN / "alerts.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["expr"] = re.sub(r"(?<=\[)(\d+)m(?=\])", shorter, rule["expr"])
        if "for" in rule:
            rule["for"] = re.sub(r"(\d+)m", shorter, rule["for"])
    return dict(rules)


def decide_by_subject(scanner: FakeScanner) -> None:
    """The mail's subject is the scanner's decision."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = scanner.submissions[-1].email.split(b"Subject: ", 1)[-1].split(b"\r\n", 1)[0].decode()
        writer.write(answer(200, result(word if word in DECISIONS else "deliver")))

    scanner.reply = reply


def certificate(directory: Path) -> dict[str, str]:
    """Files for a listener's STARTTLS."""
    authority = trustme.CA()
    own = authority.issue_cert("bridge.example", not_after=datetime.now(UTC) + timedelta(days=60))
    own.private_key_pem.write_to_path(directory / "key.pem")
    with (directory / "cert.pem").open("wb") as file:
        for pem in own.cert_chain_pems:
            file.write(pem.bytes())
    return {"cert_file": "cert.pem", "key_file": "key.pem"}


@contextmanager
def watched_bridge(
    directory: Path, rules: dict[str, Any] | None = None, scrape: str = SCRAPE, **sections: Any
) -> Iterator[Scene]:
    need("prometheus", "promtool")
    with parts() as (background, scanner, next_hop), running_service(directory) as lists:
        decide_by_subject(scanner)
        lists.add("blocked-senders", {"bad@sender.example": ""})
        tls = certificate(directory)
        more: dict[str, Any] = {
            "workers": 2,
            "admission": {"limit": "adaptive"},
            "quarantine": {"max_size": "1GiB"},
            "events": [{"name": "log", "type": "file", "path": "events.jsonl"}],
            "digests": {"schedule": "daily", "from": "quarantine@a.example", "domains": ["a.example"]},
            "lists": {"url": lists.url, "api_key_file": str(lists.key_file)},
            **sections,
        }
        config, port, admin = write_config(directory, scanner.url, next_hop.url, **more)
        data, _ = yaml_file.read(config, config.read_text())
        data["listeners"][0] |= {"tls": tls, "lists": {"block": ["blocked-senders"]}}
        config.write_text(yaml_file.dump(data))
        prometheus = Prometheus(
            directory, admin, rules, scrape
        )  # started first: it looks for new targets only every 5 s
        try:
            bridge = start(config, port, admin)
            try:
                yield Scene(bridge, scanner, next_hop, background, prometheus, {"mx": _end(directory / "cert.pem")})
            finally:
                bridge.end()
        finally:
            prometheus.end()


def _end(path: Path) -> float:
    """When the certificate expires, as the standard library decodes it."""
    return float(ssl.cert_time_to_seconds(ssl._ssl._test_decode_cert(path)["notAfter"]))  # type: ignore[attr-defined]
