"""What each tool does and how its result is judged. A check returns `Found`; it raises `Failed` at most."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as Xml
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.service import openapi
from bridge.service.lists.store import PREDEFINED
from bridge.testing import TOKEN, SmtpClient, until
from tests.hostile.smuggling import SEQUENCES, scan
from tests.requirements import find
from tests.tools.scene import ADMIN, INJECTED, LISTENER, POSTFIX, PUBLIC, ROOT, SERVICE, Scene


@dataclass(frozen=True)
class Found:
    tool: str
    version: str
    did: str
    result: str
    good: bool


class Failed(Exception):
    """A tool did not run to completion."""


def run(*command: str, timeout_s: float = 300.0, codes: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    program = find(command[0]) or command[0]
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )
    if done.returncode not in codes:
        raise Failed(f"`{command[0]}` exited with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout + done.stderr


def version(pattern: str, *command: str) -> str:
    text = run(*command, codes=tuple(range(256)))
    match = re.search(pattern, text)
    return match.group(1) if match else "?"


# --- strangers ------------------------------------------------------------------------------------

RELAY = re.compile(r"smtp-open-relay: (.*)")


def nmap_relay(scene: Scene) -> Found:
    """16 spellings of a foreign address from an untrusted client; as a control, the same from a trusted one."""
    closed = RELAY.findall(run("nmap", "-Pn", "-n", "-p25", "--script", "smtp-open-relay", PUBLIC))
    control = run("nmap", "-Pn", "-n", f"-p{LISTENER}", "--script", "+smtp-open-relay", "127.0.0.1")
    passed = re.search(r"open relay \((\d+)/16 tests\)", control)
    strangers = [mail for mail in scene.sink.mails if b" from <192.0.2" in mail.content]
    good = closed == ["Server doesn't seem to be an open relay, all tests failed"] and passed is not None
    return Found(
        "nmap smtp-open-relay",
        nmap_version(),
        "16 probes from an untrusted address; as a control, the same from a trusted one",
        f"{'0 of 16 relayed' if good else closed}; control: {passed.group(1) if passed else 0} of 16",
        good and not strangers,
    )


def nmap_scripts(_scene: Scene) -> Found:
    """All its other smtp scripts."""
    chosen = "smtp-* and not smtp-open-relay"
    text = run("nmap", "-Pn", "-n", "-p25", "--script", chosen, PUBLIC)
    offered = re.search(r"smtp-commands: (.*)", text)
    commands = {command.strip() for command in offered.group(1).split(",")} if offered else set()
    bad = [
        *re.findall(r"VULNERABLE:|State: (?:LIKELY )?VULNERABLE", text),
        *(commands & {"AUTH", "VRFY", "EXPN", "ETRN", "XCLIENT", "XFORWARD"}),
        *([] if "Couldn't find any accounts" in text else ["smtp-enum-users found some"]),
    ]
    return Found(
        "nmap, its other smtp scripts",
        nmap_version(),
        "commands, users, passwords, NTLM and known vulnerabilities, from the untrusted address",
        f"found: {', '.join(bad)}"
        if bad or not offered
        else "no vulnerability, no account, no AUTH, XCLIENT or XFORWARD offered",
        bool(offered) and not bad,
    )


def nmap_version() -> str:
    return version(r"Nmap version (\S+)", "nmap", "--version")


# --- TLS ------------------------------------------------------------------------------------------


def sslscan(scene: Scene) -> Found:
    """TLS versions and ciphers after STARTTLS."""
    path = scene.directory / "sslscan.xml"
    run("sslscan", "--starttls-smtp", f"--xml={path}", f"{PUBLIC}:25")
    tree = Xml.parse(path)
    enabled = [protocol for protocol in tree.iter("protocol") if protocol.get("enabled") == "1"]
    versions = {f"{protocol.get('type')} {protocol.get('version')}" for protocol in enabled}
    ciphers = [element.get("cipher", "") for element in tree.iter("cipher")]
    weak = [cipher for cipher in ciphers if not re.search("GCM|CHACHA20", cipher)]
    bleeding = [element for element in tree.iter("heartbleed") if element.get("vulnerable") != "0"]
    renegotiation = [element for element in tree.iter("renegotiation") if element.get("supported") != "0"]
    return Found(
        "sslscan",
        version(r"(\d+\.\d+\.\d+)", "sslscan", "--version"),
        "STARTTLS: versions, ciphers, renegotiation, Heartbleed",
        f"{', '.join(sorted(versions))}; {len(ciphers)} ciphers, {len(weak)} weak; "
        f"renegotiation {'offered' if renegotiation else 'not offered'}",
        versions == {"tls 1.2", "tls 1.3"} and len(ciphers) > 2 and not weak and not bleeding and not renegotiation,
    )


# Findings about the test's own certificate, or about the machine the tool runs on.
OF_THE_TEST = {
    "cert_chain_of_trust", "cert_validityPeriod", "cert_revocation", "cert_trust", "cert_caIssuers",
    "engine_problem", "sessionresumption_ID", "sessionresumption_ticket", "DNS_CAArecord", "scanTime", "overall_grade",
}  # fmt: skip


def testssl(scene: Scene) -> Found:
    """Everything it can check: protocols, ciphers, and some twenty named attacks."""
    path = scene.directory / "testssl.json"
    program = "testssl" if find("testssl") else "testssl.sh"
    options = ["--quiet", "--color", "0", "--warnings", "off", "--nodns", "none", "-t", "smtp", "--jsonfile", str(path)]
    run(program, *options, f"{PUBLIC}:25", timeout_s=900, codes=tuple(range(20)))
    findings = json.loads(path.read_text())
    bad = [row for row in findings if row["severity"] not in ("OK", "INFO") and row["id"] not in OF_THE_TEST]
    shown = "; ".join(f"{row['id']} {row['severity']}: {row['finding']}" for row in bad)
    return Found(
        "testssl.sh",
        version(r"testssl(?:\.sh)?\s+(\d\S+)", program, "--version"),
        "STARTTLS: protocols, ciphers, server defaults, named attacks",
        shown or f"{len(findings)} findings, none worse than INFO (apart from those about the test certificate)",
        len(findings) > 50 and not bad,
    )


# --- bytes ----------------------------------------------------------------------------------------


def smuggling(scene: Scene) -> Found:
    """All false spellings of an end of data, with a Postfix behind the bridge that accepts some of them."""
    gullible = (b"\n.\n", b"\n.\r\n", b"\r\n.\n")
    scan(lambda: SmtpClient(POSTFIX), b"behind.example", gullible)  # the control: without the bridge smuggling works
    until(lambda: not queued(scene), "all mail to arrive")
    control = count(scene, b"smuggled@")
    scene.mailbox.mails.clear()
    seen = scan(scene.client, b"behind.example")
    with scene.client() as client:
        client.open()
        client.begin(recipient=b"<honest@behind.example>")
        client.say(b"Subject: x\r\n\r\nx\r\n.", b"QUIT")
    until(lambda: count(scene, b"honest@"), "the honest mail")
    until(lambda: not queued(scene), "all mail to arrive")
    arrived = count(scene, b"carrier@") + count(scene, b"smuggled@")
    refused = sum(attempt.refused for attempt in seen)
    return Found(
        "smuggling scan (tests/hostile/smuggling.py)",
        "-",
        f"{len(SEQUENCES)} spellings of an end of data, with a Postfix behind the bridge that accepts bare LF",
        f"{refused} refused with `550 5.5.2`, {arrived} mails arrived; control, without the bridge: {control} smuggled",
        refused == len(SEQUENCES) and arrived == 0 and control > 0 and count(scene, b"honest@") == 1,
    )


def queued(scene: Scene) -> bool:
    return "Mail queue is empty" not in scene.postfix.run("postqueue", "-p")


def count(scene: Scene, recipient: bytes) -> int:
    return sum(any(address.startswith(recipient) for address in mail.recipients) for mail in scene.mailbox.mails)


PLAIN = (
    b"EHLO injected.example\r\n",
    b"NOOP\r\nNOOP\r\n",
    b"MAIL FROM:<evil@client.example>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nx\r\n.\r\n",
    b"XFORWARD ADDR=198.51.100.1\r\n",
    b"RSET\r\nQUIT\r\n",
    b"NOO",
)


def starttls_commands(scene: Scene) -> Found:
    """Plaintext commands after STARTTLS, in the same segment (CVE-2011-0411)."""
    before = len(scene.sink.mails)
    wrong = [plain for plain in PLAIN if not forgotten(scene, plain)]
    return Found(
        "STARTTLS command injection (tests/tools/checks.py)",
        "-",
        f"{len(PLAIN)} kinds of commands in one segment with STARTTLS",
        f"obeyed: {wrong}" if wrong else "none answered, none obeyed, the session starts over",
        not wrong and len(scene.sink.mails) == before,
    )


def forgotten(scene: Scene, plain: bytes) -> bool:
    with scene.client() as client:
        client.open()
        client.send(b"STARTTLS\r\n" + plain)
        if not client.reply().startswith(b"220 "):
            return False
        client.sock = scene.trust.wrap_socket(client.sock, server_hostname="bridge.example")
        return [reply[:3] for reply in client.say(b"NOOP", b"MAIL FROM:<>", b"EHLO x")] == [b"250", b"503", b"250"]


def starttls_replies(scene: Scene) -> Found:
    """The reverse: a next hop, or an attacker in front of it, that adds replies after its 220 (CVE-2021-38371)."""
    with scene.client() as client:
        client.open()
        client.begin(recipient=b"<b@injecting.example>")
        reply = client.say(b"Subject: x\r\n\r\nx\r\n.")[0]
    connection = scene.injecting.connections[-1]
    believed = any(command.startswith("XFORWARD") for command in connection.commands)
    good = reply.startswith(b"250 ") and connection.tls and len(connection.contents) == 1 and not believed
    return Found(
        "STARTTLS response injection (tests/tools/checks.py)",
        "-",
        f"a next hop that sends `{INJECTED.decode().strip()!r}` in plaintext after its 220".replace("\\r\\n", " "),
        "discarded; the mail was sent once, over TLS" if good else f"{reply!r}, believed: {believed}",
        good,
    )


# --- load -----------------------------------------------------------------------------------------

MAILS, SWAKS = 5000, 100


def load(scene: Scene) -> Found:
    """Many mails at a time, in plaintext and over TLS; each must reach the next hop exactly once."""
    scene.sink.mails.clear()
    target = f"127.0.0.1:{LISTENER}"
    flood = ["smtp-source", "-m", str(MAILS), "-s", "15", "-l", "4000", "-f", "source@client.example"]
    source = subprocess.Popen([str(find(flood[0])), *flood[1:], "-t", "load@example.org", target])
    swaks = " ".join(f"{number}@swaks.example" for number in range(SWAKS))
    each = f"swaks --server {target} --tls-optional --from swaks@client.example --silent 3 --to"
    try:
        run("sh", "-c", f"printf '%s\\n' {swaks} | xargs -P 4 -n 1 {each}")
        code = source.wait(300)
    finally:
        source.kill()
        source.wait()
    got = [address for mail in scene.sink.mails for address in mail.recipients]
    flooded, single = (
        got.count(b"load@example.org"),
        {address for address in got if address.endswith(b"@swaks.example")},
    )
    total = len(got)
    return Found(
        "smtp-source, swaks",
        ", ".join(
            (version(r"= (\S+)", "postconf", "mail_version"), version(r"version (\d+\S*)", "swaks", "--version"))
        ),
        f"{MAILS} mails of 4 kB over 15 sessions, and at the same time {SWAKS} runs of swaks over STARTTLS",
        f"{flooded} + {len(single)} arrived, {total - flooded - len(single)} twice, exit code {code}",
        (code, flooded, len(single), total) == (0, MAILS, SWAKS, MAILS + SWAKS),
    )


# --- the service ----------------------------------------------------------------------------------


def schemathesis(scene: Scene) -> Iterator[Found]:
    """Each interface, from its OpenAPI document: valid and invalid requests, and sequences along its links."""
    named = openapi.document()
    named["components"]["schemas"]["ListName"] = {"enum": [predefined.name for predefined in PREDEFINED]}
    (scene.directory / "named.json").write_text(json.dumps(named))
    ours = str(ROOT / "docs" / "reference" / "openapi.json")
    key, lists, scans = f"apikey {scene.api_key}", ("--include-path-regex", "^/api"), ("--exclude-path-regex", "^/api")
    yield one_api(scene, "Email Scanning API", ours, f"Bearer {TOKEN}", SERVICE, *scans)
    yield one_api(scene, "List API", ours, key, SERVICE, *lists)
    yield one_api(
        scene, "List API, names of existing lists", str(scene.directory / "named.json"), key, SERVICE, *lists
    )  # fmt: skip
    with scene.client() as client:
        client.open()
        for _ in range(100):
            client.mail()
    history = str(ROOT / "docs" / "reference" / "api.json")
    yield one_api(scene, "History API", history, f"Bearer {TOKEN}", ADMIN)


def one_api(scene: Scene, name: str, document: str, authorization: str, port: int, *options: str) -> Found:
    program = str(Path(sys.executable).parent / "schemathesis")
    try:
        text = run(
            program, "run", document, "--url", f"http://127.0.0.1:{port}", "-H", f"Authorization: {authorization}",
            "--max-examples", "100", "--seed", "1", "--no-color", *options, timeout_s=900, cwd=scene.directory,
        )  # fmt: skip
        made = re.search(r"(\d+) generated(?:, (\d+) passed)?", text)
        result, good = f"{made.group(1) if made else '?'} cases, no failure", made is not None
    except Failed as exc:
        result, good = str(exc), False
    return Found(
        f"schemathesis, {name}",
        version(r"version (\S+)", program, "--version"),
        f"docs/reference/{'api.json' if port == ADMIN else 'openapi.json'}, 100 examples each",
        result,
        good,
    )


Check = Callable[[Scene], "Found | Iterator[Found]"]
CHECKS: dict[str, tuple[Check, str]] = {
    "relay": (nmap_relay, "nmap"),
    "nmap": (nmap_scripts, "nmap"),
    "sslscan": (sslscan, "sslscan"),
    "testssl": (testssl, "testssl"),
    "smuggling": (smuggling, "postfix"),
    "starttls-commands": (starttls_commands, ""),
    "starttls-replies": (starttls_replies, ""),
    "load": (load, "smtp-source"),
    "schemathesis": (schemathesis, ""),
}
QUICK = ("relay", "nmap", "sslscan", "smuggling", "starttls-commands", "starttls-replies")  # in every test run
