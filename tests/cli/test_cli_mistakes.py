"""What people get wrong: each message says what happened, where, and what to do next.

Every row is a mistake somebody makes on the first day, tried with the real command. `expected` lists words of the
message: the place, what is wrong, and the next step.
"""

from __future__ import annotations

import os
import shlex
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme

from bridge.api.lists import ListFileInfo
from bridge.lists.copies import Wanted
from bridge.lists.fetch import NotMatchable, kind_of
from bridge.testing import Background, FakeScanner, answer, free_port
from tests.daemon.process_kit import environment, scanbridge
from tests.requirements import need_python_for_all

TOKEN = "a-token-of-the-test-suite"


class Desk:
    """A directory with a configuration that works, apart from the scanner and the next hop, which do not run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.admin, self.scanner, self.hop = (free_port() for _ in range(4))
        self.file = directory / "bridge.yml"
        self.text = (
            f'scanner: {{urls: ["http://127.0.0.1:{self.scanner}"], token_file: token}}\n'
            "listeners:\n"
            f'  - {{name: mx, address: "127.0.0.1:{self.port}"}}\n'
            f'relay: {{next_hop: "smtp://127.0.0.1:{self.hop}"}}\n'
            f'admin: {{address: "127.0.0.1:{self.admin}"}}\n'
            f"state_directory: {directory / 'state'}\n"
            "limits: {max_connections: 50}\n"
        )
        self.file.write_text(self.text)
        self.write("token", TOKEN + "\n")
        self.write("mail.eml", "Subject: hello\n\nhello\n")

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(0o600)

    def replace(self, old: str, new: str) -> None:
        assert old in self.text
        self.file.write_text(self.text.replace(old, new))

    def add(self, line: str) -> None:
        self.file.write_text(self.text + line + "\n")

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and everything that was printed."""
        env = environment(XDG_STATE_HOME=str(self.directory / "xdg"), SCANBRIDGE_CONFIG=str(self.file))
        done = scanbridge(*arguments, cwd=self.directory, env=env)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def _in_file(old: str, new: str, end: str = "") -> Callable[[Desk], None]:
    """With `end`, also that end of the first line."""

    def arrange(desk: Desk) -> None:
        desk.replace(old, new)
        if end:
            first, _, rest = desk.file.read_text().partition("}\n")
            desk.file.write_text(f"{first}{end}\n{rest}")

    return arrange


def _tls(cert: str, key: str) -> Callable[[Desk], None]:
    """A listener with TLS, and two certificates with their keys."""

    def arrange(desk: Desk) -> None:
        for name in ("one", "two"):
            made = trustme.CA().issue_cert("mx.example")
            desk.write(f"{name}.pem", made.cert_chain_pems[0].bytes().decode())
            desk.write(f"{name}.key", made.private_key_pem.bytes().decode())
        desk.replace("name: mx,", f"name: mx, tls: {{cert_file: {cert}, key_file: {key}}},")

    return arrange


def _line(text: str) -> Callable[[Desk], None]:
    return lambda desk: desk.add(text)


def _whole(text: str | bytes) -> Callable[[Desk], None]:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda desk: desk.file.write_bytes(content)


def _nothing(_: Desk) -> None:
    pass


def _file(name: str, text: str) -> Callable[[Desk], None]:
    return lambda desk: desk.write(name, text)


def _next_hop(place: str) -> Callable[[Desk], None]:
    return lambda desk: desk.replace(f"smtp://127.0.0.1:{desk.hop}", place.format(**vars(desk)))


def _listener(place: str, more: str = "") -> Callable[[Desk], None]:
    """Another address; {port} and {directory} are the desk's."""
    return lambda desk: desk.replace(
        f'name: mx, address: "127.0.0.1:{desk.port}"', f'name: mx, {more}address: "{place.format(**vars(desk))}"'
    )


def _lists(desk: Desk) -> None:
    desk.write("key", "k" * 40)
    desk.add(f"lists: {{url: 'http://127.0.0.1:{desk.scanner}', api_key_file: key}}")


def _service(old: str = "", new: str = "") -> Callable[[Desk], None]:
    """A configuration of the service that works, but for one word."""
    text = (
        "listen: 127.0.0.1:0\n"
        "guard: {scanSources: {restApi: {}}}\n"
        "abby:\n"
        "  serviceProviders: {core: {}}\n"
        f"  staticApiTokens: [{{name: bridge, token: {'ab' * 32}, permissions: [scan, status]}}]\n"
        "database: sqlite:///s.sqlite\n"
    )
    assert old in text
    return _file("service.yml", text.replace(old, new))


def _with_key(desk: Desk) -> None:
    _service()(desk)
    assert desk.run(*["service", "-c", "service.yml", "apikey", "create", "automation"])[0] == 0


TENANT = "123e4567-e89b-12d3-a456-426614174000"

# The mistake, the command, its exit code, and words of its message.
MISTAKES: list[tuple[str, Callable[[Desk], None], str, int, list[str]]] = [
    # on the command line
    ("a misspelled command", _nothing, "chekc", 2, ["No such command 'chekc'", "Did you mean 'check'"]),
    ("a misspelled subcommand", _nothing, "quarantine lsit", 2, ["No such command 'lsit'", "Did you mean 'list'"]),
    ("a misspelled option", _nothing, "status --jsno", 2, ["No such option '--jsno'", "--json"]),
    ("a file that is not there", _nothing, "check -c nofile.yml", 78, ["nofile.yml", "No such file", "-c"]),
    ("a directory", _nothing, "check -c .", 2, ["'.' is a directory"]),
    ("a mail that is not there", _nothing, "scan no.eml", 2, ["'no.eml' does not exist"]),
    ("a mode that does not exist", _nothing, "setup postfix --mode mliter", 2, ["'mliter'", "'milter'"]),
    ("a forgotten mode", _nothing, "setup postfix", 2, ["--mode", "Choose from: proxy, milter, content-filter"]),
    ("remove for delete", _nothing, "lists remove blocked-senders x", 2, ["'remove'", "Did you mean 'delete'"]),
    ("rm for delete", _nothing, "quarantine rm 1A2B", 2, ["'rm'", "Did you mean 'delete'"]),
    ("-c before the command", _nothing, "-c bridge.yml status", 2, ["-c", "after the command"]),
    ("a time nobody understands", _nothing, "quarantine list --since lastweek", 2,
     ["--since", "'lastweek' is not a time", "3d", "yesterday"]),
    ("a state that does not exist", _nothing, "quarantine list --state relased", 2,
     ["'relased' is not a state", "did you mean released?"]),
    ("a decision that does not exist", _nothing, "quarantine list --decision bounced", 2,
     ["'bounced' is not a decision", "did you mean bounce?"]),
    ("no daemon to watch", _nothing, "top --once --interval 0.1", 1, ["no daemon answers at"]),
    ("a mail that is not in the quarantine", _nothing, "quarantine show 1A2B", 3,
     ["1A2B: no such mail", "state/quarantine", "it is empty"]),
    ("a path instead of an id", _nothing, "quarantine release ../token", 3, ["../token", "no such mail"]),
    # YAML
    ("an empty file", _whole(""), "check", 78, ["bridge.yml:1", "scanner: this key is required"]),
    ("a tab", _whole("scanner:\n\turls: []\n"), "check", 78, ["bridge.yml:2", "not YAML", "indent with spaces"]),
    ("a missing bracket", _whole("a: [b\nc: []\n"), "check", 78, ["bridge.yml:2", "not YAML", "']'"]),
    ("another encoding", _whole("a: ü".encode("utf-16")), "check", 78, ["bridge.yml", "not UTF-8", "save it as UTF-8"]),
    ("a key twice", _line("admin: {}"), "check", 78, ["bridge.yml:8: admin", "twice, first on line 5", "remove one"]),
    ("a broken file at a reload", _line("lisst: {}"), "reload", 78,
     ["did you mean lists?", "a running daemon keeps its configuration"]),
    # keys and values
    ("a misspelled key", _in_file("token_file", "tokenfile"), "check", 78, [":1: ", "did you mean token_file?"]),
    ("a key in the wrong place", _line("next_hop: a:25"), "check", 78, [":8: ", "did you mean relay.next_hop?"]),
    ("no unit", _line("late_decisions: {max_age: 10}"), "check", 78, [":8: ", "max_age", "for example 90s"]),
    ("text for a number", _line("workers: many"), "check", 78, [":8: workers", "a number from 1 to 64", "auto"]),
    ("`yes` for true", _in_file("max_connections: 50", "max_errors: yes"), "check", 78, [":7: ", "whole number"]),
    ("a misspelled profile", _in_file("name: mx,", "name: mx, profile: postfix-mliter,"), "check", 78,
     [":3: listeners.0.profile", "did you mean postfix-milter?"]),
    ("a profile of another protocol", _in_file("name: mx,", "name: mx, profile: postfix-milter,"), "check", 78,
     [":3: ", "a profile for milter, but this listener speaks smtp; profiles for smtp: postfix-proxy, "]),
    ("a misspelled action", _line("policy: {quarantine: rejct}"), "check", 78,
     [":8: policy", "relay, reject, discard", "did you mean reject?"]),
    ("a tenant that is not a UUID", _line("tenants: [{uid: acme, recipient_domains: [a.example]}]"), "check", 78,
     [":8: tenants.0.uid", "for example 123e4567"]),
    ("an address for a domain", _line(f"tenants: [{{uid: {TENANT}, recipient_domains: [u@a.example]}}]"), "check", 78,
     [":8: ", "for example example.org"]),
    ("a pattern for a domain", _line(f"tenants: [{{uid: {TENANT}, recipient_domains: ['*.a.example']}}]"), "check", 78,
     [":8: ", "for example example.org"]),
    # addresses
    ("a port that does not exist", _in_file('listeners:\n  - {name: mx, address: "127.0.0.1:',
                                            'listeners:\n  - {name: mx, address: "127.0.0.1:9'), "check", 78,
     [":3: listeners.0.address", "1 to 65535"]),
    ("no port", _in_file("smtp://127.0.0.1:", "smtp://127.0.0.1/"), "check", 78, [":4: ", "smtp://host:port"]),
    ("a network with host bits", _in_file("name: mx,", "name: mx, trusted_clients: [10.1.2.3/8],"), "check", 78,
     [":3: ", "write 10.0.0.0/8"]),
    ("open to everybody", _in_file('address: "127.0.0.1', 'address: "0.0.0.0'), "check", 78,
     [":3: ", "can be reached from other machines", "listen on 127.0.0.1"]),
    ("two listeners with one name", _in_file("relay:", '  - {name: mx, address: "127.0.0.1:1"}\nrelay:'), "check", 78,
     [":4: listeners.1.name", "two listeners are named mx", "listeners.0", "another name"]),
    ("a token that is sent unencrypted", _in_file("http://127.0.0.1", "http://scanner.example"), "check", 78,
     [":1: ", "unencrypted", "use https://"]),
    ("a password in a URL", _in_file("http://127.0.0.1", "https://u:pw@scanner.example"), "check", 78,
     [":1: ", "must not contain a user name or password", "separate files"]),
    # files
    ("a token file that is not there", _in_file("token_file: token", "token_file: tokn"), "check", 1,
     ["token_file", "tokn", "No such file", "on one line"]),
    ("an empty token file", lambda desk: desk.write("token", ""), "run", 78,
     ["bridge.yml:1: scanner.token_file: ", "token is empty", "write the secret into it"]),
    ("a certificate that is not there", _in_file("name: mx,", "name: mx, tls: {cert_file: c.pem, key_file: k.pem},"),
     "run", 78, ["bridge.yml:3: listeners.mx.tls.cert_file: ", "c.pem", "No such file"]),
    ("a key of another certificate", _tls("one.pem", "two.key"), "check", 1,
     ["bridge.yml:3: listeners.mx.tls.cert_file: ", "one.pem", "two.key", "does not belong to the certificate",
      "use the key that the certificate was issued for"]),
    ("certificate and key swapped", _tls("one.key", "one.pem"), "run", 78,
     ["bridge.yml:3: listeners.mx.tls.cert_file: ", "they are swapped", "swap the two names"]),
    ("a token in the place of a certificate", _tls("token", "one.key"), "check", 1,
     ["bridge.yml:3: ", "no line with BEGIN CERTIFICATE", "convert it"]),
    ("CA certificates that are not there", _in_file("http://127", "https://127", ", ca_file: ca.pem}"), "check", 1,
     ["bridge.yml:1: scanner.ca_file: ", "ca.pem", "No such file", "leave this key out"]),
    ("a state directory nobody can create", _in_file("state_directory: ", "state_directory: /proc"), "run", 78,
     ["state_directory", "cannot be created", "choose a directory"]),
    # programs that do not run
    ("no daemon: status", _nothing, "status", 1,
     ["no daemon answers at 127.0.0.1:", "(admin.address)", "is it running?", "scanbridge run"]),
    ("no daemon: reload", _nothing, "reload", 1,
     ["no daemon answers at 127.0.0.1:", "(admin.address)", "is it running?", "if you have changed admin.address"]),
    ("an id without its last character", _nothing, "explain 1A1EB801B2C16070F8", 3,
     ["The bridge's ids have 19 characters", "this one has 18", "copy the id again"]),
    ("no daemon: top", _nothing, "top --once", 1, ["no daemon answers at 127.0.0.1:", "scanbridge run"]),
    ("no scanner", _nothing, "scan mail.eml", 1, ["mail.eml: no decision", "Connection refused", "scanner.urls"]),
    ("no next hop", _nothing, "check", 1, ["next hop smtp://127.0.0.1:", "Connection refused", "relay.next_hop"]),
    ("no List API", _nothing, "lists show", 78,
     ["not configured", "lists: {url: ..., api_key_file: ...} to ", "bridge.yml", "apikey create"]),
    ("no listener for the milter", _nothing, "setup postfix --mode milter", 78,
     ["no listener has the postfix-milter profile", "- {name: milter"]),
    # on the command line, by people who know other programs
    ("start for run", _nothing, "start", 2, ["No such command 'start'", "Did you mean 'run'"]),
    ("validate for check", _nothing, "validate", 2, ["No such command 'validate'", "Did you mean 'check'"]),
    ("help for --help", _nothing, "help", 2, ["No such command 'help'", "Did you mean '--help'"]),
    ("ls for list", _nothing, "quarantine ls", 2, ["No such command 'ls'", "Did you mean 'list'"]),
    ("another mail server", _nothing, "setup qmail", 2, ["No such command 'qmail'", "The commands are postfix"]),
    ("a listener that does not exist", _nothing, "setup postfix --mode proxy --listener mxx", 78,
     ["bridge.yml", "--listener: no listener is named mxx", "did you mean mx?"]),
    ("an option of another option", _nothing, "check --listener mx", 2, ["--listener", "add --send-test"]),
    ("a span that ends before it begins", _nothing, "quarantine list --since 2h --until 3h", 2,
     ["--since is not before --until", "swap the two"]),
    ("a span of the history that ends before it begins", _nothing, "history --since today --until yesterday", 2,
     ["--since is not before --until", "swap the two"]),
    ("a time without a day", _nothing, "history --since 10:00", 2,
     ["--since", "'10:00' is not a time", "'today 10:00'"]),
    ("a time zone by its name", _nothing, "history --since 2026-11-01T14:30CET", 2,
     ["--since", "is not a time", "local time", "+01:00"]),
    ("a tenant of the history by its name", _nothing, "history --tenant example.org", 2,
     ["--tenant", "must be a UUID", "`tenants`"]),
    ("a tenant of the quarantine by its name", _nothing, "quarantine list --tenant example.org", 2,
     ["--tenant", "must be a UUID", "`tenants`"]),
    ("an age without a unit", _nothing, "quarantine purge --older-than 30", 2, ["--older-than", "'30'", "3d"]),
    ("a filter twice", _nothing, "quarantine delete --tag malware:* --tag spam:* --yes", 2,
     ["--tag was given 2 times", "only one value"]),
    ("a file twice", _nothing, "status -c one.yml -c other.yml", 2, ["--config was given 2 times", "only one value"]),
    ("everything before now", _nothing, "quarantine delete --until 0d --yes", 2, ["--until", "all mail", "--all"]),
    ("every sender", _nothing, "quarantine delete --sender @ --yes", 2, ["--sender", "all mail", "--all"]),
    ("every client", _nothing, "quarantine release --client 192.0.2.1/0 --yes", 2, ["--client", "all mail", "--all"]),
    ("a recipient without a domain", _nothing, "quarantine release 1A2B --to me", 2,
     ["--to", "'me' has no domain", "me@example.org"]),
    ("a tenant by its name", _nothing, "lists show --tenant acme", 2, ["--tenant", "a UUID, for example 123e4567"]),
    ("an unset variable for a tenant", _nothing, "lists show --tenant=", 2, ["--tenant", "must be a UUID"]),
    ("a tenant of a scan by its name", _nothing, "scan mail.eml --tenant acme", 2,
     ["--tenant", "must be a UUID", "`tenants`"]),
    ("a tenant of a digest by its name", _nothing, "digest preview --tenant acme", 2,
     ["--tenant", "must be a UUID", "`tenants`"]),
    ("a patience without a unit", _nothing, "lists show --patience 5", 2, ["--patience", "for example 90s"]),
    ("a host name for an address", _nothing, "scan mail.eml --remote-address mx.example", 2,
     ["--remote-address", "expected an IP address, for example 192.0.2.7"]),
    ("a service without any file", _nothing, "service", 78, ["service.yml", "No such file", "give the file with -c"]),
    ("an empty name of the configuration", _nothing, "status -c ''", 2, ["the file name is empty", "leave out -c"]),
    ("stop for systemctl", _nothing, "stop", 2, ["No such command 'stop'", "systemctl stop scanbridge"]),
    ("logs for history", _nothing, "logs", 2, ["No such command 'logs'", "Did you mean 'history'"]),
    ("all for no limit", _nothing, "quarantine list --limit all", 2, ["--limit", "'all'", "0 (no limit)"]),
    ("a negative limit", _nothing, "history --limit -5", 2, ["--limit", "-5", "0 (no limit)"]),
    ("a time that has not come", _nothing, "quarantine list --since 2099-01-01", 2,
     ["--since is in the future", "in the past"]),
    ("a time limit in words", _nothing, "reload --timeout soon", 2, ["--timeout", "'soon'", "for example 30"]),
    ("no time at all", _nothing, "service reload --timeout 0", 2, ["--timeout", "'0'", "for example 30"]),
    ("two addresses in one option", _nothing, "quarantine release 1A2B --to a@b.example,c@d.example", 2,
     ["--to", "is not a mail address", "once for each address"]),
    ("two recipients of a scan in one option", _nothing, "scan mail.eml --to a@b.example,c@d.example", 2,
     ["--to", "is not a mail address", "once for each address"]),
    ("an address with a name", _nothing, "quarantine release 1A2B --to 'Ann <ann@example.org>'", 2,
     ["--to", "is not a mail address", "write ann@example.org"]),
    ("a decision that policy does not know", _line("policy: {spam: reject}"), "check", 78,
     [":8: policy.spam: unknown key", "The keys here are deliver, quarantine, bounce"]),
    ("a key of other programs", _in_file("relay: {", "relay: {port: 25, "), "check", 78,
     [":4: relay.port: unknown key", "the keys here are next_hop, "]),
    ("a host name with its port", _line("hostname: 'mx.example.org:25'"), "check", 78,
     [":8: hostname: ", "without a scheme or a port", "mx.example.org"]),
    ("a URL for a host name", _line("hostname: https://mx.example.org"), "check", 78,
     [":8: hostname: ", "without a scheme or a port"]),
    ("another name of PostgreSQL", _line("state_database: postgres://a@b.example/c"), "check", 78,
     [":8: state_database: ", "write postgresql://"]),
    ("another format", _whole('[scanner]\nurls = ["http://127.0.0.1:1"]\n'), "check", 78,
     [":2: not YAML", "another format, such as TOML or INI"]),
    # more YAML
    ("a second colon", _line("hostname: mx: a"), "check", 78, [":8: not YAML", "a second colon", "quotes"]),
    ("a wrong indentation", _whole("scanner:\n  urls: [a]\n token_file: x\n"), "check", 78,
     [":3: not YAML", "indented differently", "align them"]),
    ("a value that begins with @", _line("hostname: @mx"), "check", 78,
     [":8: not YAML", "special character", "quotes"]),
    ("a value that begins with *", _line("hostname: *mx"), "check", 78, [":8: not YAML", "starts with *", "quotes"]),
    ("an unclosed quote", _line('hostname: "mx'), "check", 78,
     [":9: not YAML", "ends in the middle", "close its quote"]),
    ("an unclosed bracket", _whole("scanner:\n  urls: [a\n  token_file: x\n"), "check", 78,
     [":3: not YAML", "close the bracket that was opened on line 2"]),
    ("a no-break space", _line("log:\u00a0{level: info}"), "check", 78, [":8: ", "no-break space", "a plain space"]),
    ("typographic quotes", _line("hostname: \u201cmx.example\u201d"), "check", 78,
     [":8: hostname", "expected a host name, for example mx.example.org"]),
    # more keys and values
    ("one URL instead of a list", lambda desk: desk.replace(
        f'["http://127.0.0.1:{desk.scanner}"]', "http://127.0.0.1:9081"), "check", 78,
     [":1: scanner.urls", "expected a list, for example ["]),
    ("the token for its file", _in_file("token_file: token", f"token_file: {'ab' * 32}"), "check", 78,
     [":1: scanner.token_file", "the secret itself", "put it in a file"]),
    ("the URL of an operation", _in_file('"], token', '/v1/messageQueue/submitEmail"], token'), "check", 78,
     [":1: scanner.urls", "must end before /v1", "https://host:port"]),
    ("an action in one word", _line("policy: {bounce: quarantin}"), "check", 78,
     [":8: policy.bounce: ", "did you mean quarantine?"]),
    ("a code that does not fit", _line("policy: {bounce: {action: reject, code: 450}}"), "check", 78,
     [":8: policy.bounce", "reject takes a 5xx code"]),
    ("a level of another program", _line("log: {level: verbose}"), "check", 78, [":8: log.level", "debug, info"]),
    ("a misspelled dialect", _in_file("token_file: token", "token_file: token, dialect: rspamdd"), "check", 78,
     [":1: scanner.dialect: ", "email-scanning, rspamd or mta-hooks", "did you mean rspamd?"]),
    ("a URL without its scheme", _in_file("http://127", "127"), "check", 78,
     [":1: scanner.urls: ", "write its scheme (https:// or http://)"]),
    ("IPv6 without brackets in a URL", _in_file("http://127.0.0.1", "http://::1"), "check", 78,
     [":1: scanner.urls: ", "needs brackets", "http://[::1]:9081"]),
    ("IPv6 without brackets in an address", _listener("::1:11025"), "check", 78,
     [":3: listeners.0.address: ", "needs brackets: [::1]:11025"]),
    ("IPv6 without brackets in a next hop", _next_hop("smtp://::1:25"), "check", 78,
     [":4: relay.next_hop: ", "needs brackets: [::1]:25"]),
    ("a time of day in words", _line("digests: {at: 7 am}"), "check", 78,
     [":8: digests.at: ", "does not have the expected form, for example 07:00"]),
    ("a listener for a next hop", _next_hop("smtp://127.0.0.1:{port}"), "check", 78,
     [":4: relay.next_hop", "the bridge's own listener mx", "set this to the server"]),
    ("a deadline beyond the mail server's", _in_file("name: mx,", "name: mx, deadline: 10m,"), "check", 1,
     ["listener mx", "shorter than the 100s", "set it to 90s"]),
    ("two addresses that are one", lambda desk: desk.replace(str(desk.admin), str(desk.port)), "check", 78,
     [":5: admin", "the listener mx has the same address", "another port"]),
    # addresses that cannot be used
    ("an address of another machine", _listener("192.0.2.1:{port}", "trusted_clients: [10.0.0.0/8], "), "check", 1,
     ["192.0.2.1", "Cannot assign", "use an address of this machine"]),
    ("a socket in no directory", _listener("unix:{directory}/no/s"), "check", 1,
     ["/no/s", "create the directory first"]),
    ("a socket with a long path", _listener("unix:/tmp/" + 120 * "x"), "check", 1, ["too long", "at most 107 bytes"]),
    ("a file in the place of a socket", _listener("unix:{directory}/token"), "run", 1, ["/token", "is not a socket"]),
    ("an owner who does not exist", _listener("unix:{directory}/s", "unix_owner: nosuchuser, "), "run", 78,
     ["unix_owner", "nosuchuser", "create it, or correct the name"]),
    # secrets and lists
    ("a token of two lines", _file("token", "one-token\nanother\n"), "check", 1,
     ["token_file", "must contain one line"]),
    ("a key file that is not there", _line("lists: {url: 'http://127.0.0.1:1', api_key_file: no}"), "lists show", 78,
     ["lists.api_key_file", "No such file", "on one line"]),
    ("a List API that does not run", _lists, "lists show --patience 0s", 75,
     ["cannot be reached", "Connection refused", "lists.url", "--url"]),
    ("a List API without a scheme", _lists, "lists show --url 127.0.0.1:9081", 78,
     ["--url: ", "write its scheme (https:// or http://)"]),
    ("a directory that is not there", _lists, "lists sync nodir", 2, ["nodir is not a directory", "LIST and FILE"]),
    ("the content of a file instead of its name", _lists, f"lists sync {'a@b.example,' * 50}", 2,
     ["is not a directory", "LIST and FILE"]),
    ("an interval that is no number", _nothing, "top --once --interval nan", 2,
     ["--interval", "'nan' is not a number of"]),
    ("an interval without end", _nothing, "top --once --interval inf", 2, ["--interval", "x<=86400"]),
    ("one file for two results", _nothing, "replay --save result --plot result", 2,
     ["--plot names the file of --save"]),
    ("a baseline that is not there", _nothing, f"replay --baseline {'x' * 300}", 2,
     ["neither a URL nor an existing file"]),
    ("a file of entries that is not there", _lists, "lists add blocked-senders --file no.txt", 65,
     ["no.txt", "No such file", "check its path"]),
    # the service
    ("the service's file for the bridge", _service(), "run -c service.yml", 78,
     ["service.yml:2: guard", "use `scanbridge service -c service.yml`"]),
    ("the bridge's file for the service", _nothing, "service check -c bridge.yml", 78,
     ["bridge.yml:1: scanner", "it belongs in the bridge's configuration", "scanbridge run -c"]),
    ("a misspelled key of the service", _service("scanSources", "scanSource"), "service check -c service.yml", 78,
     ["service.yml:2: guard.scanSource", "did you mean scanSources?"]),
    ("another database", _service("sqlite:///s.sqlite", "mysql://a/b"), "service check -c service.yml", 78,
     ["service.yml:6: database", "sqlite:///file or postgresql://"]),
    ("a token file of the service that is not there", _service(f"token: {'ab' * 32}", "token_file: none"),
     "service check -c service.yml", 78,
     ["service.yml:5: ", "none: No such file", "scanbridge service token > none"]),
    ("a token without its secret", _service(f"token: {'ab' * 32}, ", ""), "service check -c service.yml", 78,
     ["service.yml:5: ", "set either token or token_file"]),
    ("a key of the same name", _with_key, "service -c service.yml apikey create automation", 1,
     ["already a key named automation", "revoke it first"]),
    ("a misspelled name of a key", _with_key, "service -c service.yml apikey revoke automatoin", 1,
     ["no active key named automatoin", "did you mean automation?"]),
    ("a service without its file", _nothing, "service -c none.yml", 78, ["none.yml", "No such file"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arrange", "command", "code", "expected"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_explained(
    desk: Desk, arrange: Callable[[Desk], None], command: str, code: int, expected: list[str]
) -> None:
    """What happened, where, and the next step; never a traceback, and never the token."""
    arrange(desk)
    found, printed = desk.run(*shlex.split(command))
    assert found == code, printed
    for words in expected:
        assert words in printed, printed
    assert "Traceback" not in printed and TOKEN not in printed


@pytest.mark.parametrize("which", ["port", "admin"])
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_taken_port_is_explained(desk: Desk, which: str, command: str) -> None:
    """The listener's port, or that of the admin address."""
    number = getattr(desk, which)
    with closing(socket.create_server(("127.0.0.1", number))):
        code, printed = desk.run(command)
    assert code == 1
    assert f"127.0.0.1:{number}: Address already in use by process {os.getpid()} (" in printed
    assert "; stop it, or choose another address" in printed
    if command == "run":
        assert f"{'admin.address' if which == 'admin' else 'listeners.mx.address'}: cannot listen on" in printed


@pytest.mark.parametrize("command", ["check", "scan mail.eml"])
def test_a_refused_token_is_explained(desk: Desk, command: str) -> None:
    """The scanner answers 401: the key in the configuration is named, the token is not shown."""
    background, scanner = Background(), FakeScanner()
    try:
        background.run(scanner.start())
        scanner.reply = scanner.status = answer(401)
        desk.replace(f"http://127.0.0.1:{desk.scanner}", scanner.url)
        code, printed = desk.run(*shlex.split(command))
    finally:
        background.run(scanner.stop())
        background.close()
    assert code == 1 and "401" in printed and "token_file" in printed and TOKEN not in printed


def test_an_expired_certificate_is_explained(desk: Desk) -> None:
    """`check` names the listener and the day."""
    end = datetime.now(UTC) - timedelta(days=3)
    cert = trustme.CA().issue_cert("mx.example", not_after=end)
    cert.cert_chain_pems[0].write_to_path(desk.directory / "c.pem")
    cert.private_key_pem.write_to_path(desk.directory / "k.pem")
    desk.replace("name: mx,", "name: mx, tls: {cert_file: c.pem, key_file: k.pem},")
    code, printed = desk.run("check")
    assert code == 1 and "listener mx" in printed and f"{end:%Y-%m-%d}" in printed and "expired" in printed


def test_an_unreadable_file_is_explained(desk: Desk) -> None:
    """Somebody else's file: the message says who must be able to read it."""
    desk.file.chmod(0)
    command = [sys.executable, "-m", "bridge", "check"]
    if os.geteuid() == 0:  # who can read every file
        need_python_for_all()
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        for above in (desk.directory, *desk.directory.parents[:3]):
            above.chmod(above.stat().st_mode | 0o755)
    done = subprocess.run(
        command, env=environment(SCANBRIDGE_CONFIG=str(desk.file)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert all(words in done.stderr for words in ("bridge.yml", "Permission denied", "root"))


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        ("/nope.yml", 78, ["/nope.yml", "No such file", "check the environment variable SCANBRIDGE_CONFIG"]),
        (".", 2, ["the environment variable SCANBRIDGE_CONFIG", "'.' is a directory"]),
    ],
)
def test_a_wrong_variable_is_named(desk: Desk, value: str, code: int, expected: list[str]) -> None:
    """Nobody has used -c, so the message does not mention it."""
    desk.file = Path(value)
    found, printed = desk.run("check")
    assert found == code and " -c" not in printed
    assert all(words in printed for words in expected), printed


def test_a_taken_port_of_the_demo_is_explained(desk: Desk) -> None:
    """Its addresses are fixed: the message says how to choose others, and what it says works."""
    held = []
    with suppress(OSError):  # another program may have it, which is as good
        held.append(socket.create_server(("127.0.0.1", 9081)))
    try:
        code, printed = desk.run("run", "--demo")
    finally:
        for sock in held:
            sock.close()
    assert code == 1 and "scanner.urls: cannot listen on 127.0.0.1:9081: Address already in use" in printed
    used = "by process" if held else ""  # another user's process cannot be seen
    assert used in printed
    assert "scanbridge config show --demo > demo.yml" in printed and "scanbridge run -c demo.yml" in printed
    code, shown = desk.run("config", "show", "--demo")
    assert code == 0 and "127.0.0.1:10025" in shown and str(desk.port) not in shown


def test_at_least_eighty_mistakes_are_tried() -> None:
    """Each has its own name."""
    assert len({row[0] for row in MISTAKES}) == len(MISTAKES) >= 80


@pytest.mark.parametrize(
    ("speaks_tls", "scheme", "host", "expected"),
    [
        (False, "https", "127.0.0.1", ["does not speak TLS on this port", "use http://"]),
        (True, "http", "127.0.0.1", ["if this port is for TLS, use https://"]),
        (True, "https", "localhost", ["mismatch", "'localhost'", "use a name that is in the certificate"]),
    ],
    ids=["https to a plain port", "http to a TLS port", "another name"],
)
def test_the_wrong_scheme_or_name_is_explained(
    desk: Desk, speaks_tls: bool, scheme: str, host: str, expected: list[str]
) -> None:
    """OpenSSL's `WRONG_VERSION_NUMBER` and a lost connection say nothing to most people."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(desk.directory / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if speaks_tls:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"{scheme}://{host}:{server.server_port}"
        desk.replace(f'http://127.0.0.1:{desk.scanner}"], ', f'{url}"], ca_file: ca.pem, ')
        code, printed = desk.run("check")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert code == 1 and f"scanner {url}: PROBLEM" in printed
    assert all(words in printed for words in [*expected, "scanner.urls"]), printed


def test_a_misspelled_list_of_a_listener_is_explained() -> None:
    """The message suggests the name that was meant."""
    infos = {"blocked-senders": ListFileInfo("blocked-senders", category="sender")}
    with pytest.raises(NotMatchable, match=r"no list with this name; did you mean blocked-senders\?"):
        kind_of(Wanted("blocked-sendrs"), {None: infos})
