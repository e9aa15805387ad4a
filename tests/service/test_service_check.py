"""`scanbridge service check`: what is wrong is found without a start, and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from bridge.cli import main
from tests.service.service_kit import CONFIG, ServiceProcess, command, free_port

TLS = "tls: {cert_file: cert.pem, key_file: key.pem}\n"


def check(directory: Path, text: str = CONFIG, *arguments: str) -> tuple[int, str]:
    """The exit code, and everything printed."""
    (directory / "service.yml").write_text(text)
    (directory / "service.yml").chmod(0o600)
    before = set(directory.iterdir())
    with contextlib.chdir(directory):
        done = CliRunner().invoke(main, ["service", "check", "-c", "service.yml", *arguments])
    assert set(directory.iterdir()) == before, "a check creates nothing"
    return done.exit_code, done.output


def test_a_good_configuration(tmp_path):
    """One line, exit code 0; `-v` shows each check, and `-c` may stand before the command."""
    assert check(tmp_path) == (0, "OK: 4 checks passed\n")
    code, shown = check(tmp_path, CONFIG, "-v")
    assert (code, shown.count(": ok")) == (0, 4)
    done = command(tmp_path, "-c", "service.yml", "check")
    assert (done.returncode, done.stdout) == (0, "OK: 4 checks passed\n")
    assert json.loads(check(tmp_path, CONFIG, "--json")[1])["ok"] is True


def test_all_mistakes_at_once(tmp_path):
    """Like `scanbridge check`: exit code 78."""
    code, shown = check(tmp_path, "listen: nowhere\nguard: {mainWorkerCount: 0}\nabby: {}\nlisten: x\n")
    assert code == 78
    for line in (
        "service.yml:1: listen",
        "service.yml:2: guard.mainWorkerCount",
        "service.yml:3: abby.service",
        ":4: ",
    ):
        assert line in shown
    with contextlib.chdir(tmp_path):
        absent = CliRunner().invoke(main, ["service", "check", "-c", "absent.yml"])
    assert (absent.exit_code, absent.output) == (
        78,
        "absent.yml: cannot be read: No such file or directory; check the path given with -c\n",
    )


def test_rules_that_deliver_malware_are_a_warning(tmp_path):
    """A single rule of one's own replaces all default rules."""
    rule = '{tags: ["mime:ambiguous:*"], verdict: ambiguous, decision: quarantine}'
    code, shown = check(tmp_path, f"{CONFIG}decisions:\n  rules: [{rule}]\n")
    assert code == 0
    assert "WARNING: service.yml:10: decisions.rules: mail with the malware:* tag is delivered" in shown


def test_a_taken_port_is_a_problem_unless_the_service_runs_there(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        code, shown = check(tmp_path, text)
        assert code == 1
        assert "listen: PROBLEM: service.yml:2: listen: cannot listen on 127.0.0.1:" in shown
    running = ServiceProcess(tmp_path)
    try:
        running.wait()
        text = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{running.port}")
        code, shown = check(tmp_path, text, "-v")
        assert (code, "in use by a running service" in shown) == (0, True)
        (tmp_path / "other").mkdir()
        code, shown = check(tmp_path / "other", text)
        assert (code, "PROBLEM: service.yml:2: listen: another scanning service" in shown) == (1, True)
        assert shown.endswith("checked: service.yml; problems: 1, warnings: 0\n")
        code, shown = check(tmp_path, re.sub("database: .*", "database: 'sqlite:///:memory:'", text))
        assert (code, "unless it runs with this configuration" in shown) == (0, True)
    finally:
        running.end()


def test_a_socket_file_of_a_running_service_stays(tmp_path):
    text = CONFIG.replace("127.0.0.1:0", f"unix:{tmp_path}/socket")
    (tmp_path / "elsewhere").mkdir()
    assert check(tmp_path, text)[0] == 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        assert check(tmp_path, text)[0] == 1
        assert (tmp_path / "socket").exists()


def install(directory: Path, certificate: trustme.LeafCert, key: trustme.LeafCert | None = None) -> None:
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (directory / "key.pem").write_bytes((key or certificate).private_key_pem.bytes())


def test_certificates(tmp_path):
    """Absent, unreadable, of another key, expired, and soon to expire."""
    authority = trustme.CA()
    good, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    code, shown = check(tmp_path, CONFIG + TLS)
    assert (code, "tls: PROBLEM: service.yml:9: tls: " in shown, "cert.pem: No such file" in shown) == (1, True, True)
    install(tmp_path, good)
    assert check(tmp_path, CONFIG + TLS)[0] == 0
    install(tmp_path, good, other)
    assert "the key does not belong to the certificate" in check(tmp_path, CONFIG + TLS)[1]
    (tmp_path / "cert.pem").write_text("nonsense")
    assert check(tmp_path, CONFIG + TLS)[0] == 1
    now = datetime.now(UTC)
    install(tmp_path, authority.issue_cert("127.0.0.1", not_after=now - timedelta(days=1)))
    code, shown = check(tmp_path, CONFIG + TLS)
    assert (code, "service.yml:9: tls: the certificate expired on" in shown) == (1, True)
    install(tmp_path, authority.issue_cert("127.0.0.1", not_after=now + timedelta(days=3)))
    code, shown = check(tmp_path, CONFIG + TLS)
    assert (code, "WARNING: service.yml:9: tls: the certificate expires soon" in shown) == (0, True)


def test_a_token_that_everybody_can_read_is_a_warning(tmp_path):
    """In its file, or in the configuration."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o644)
    text = "\n".join(
        line if "name: test" not in line else "    - {name: test, token_file: token}" for line in CONFIG.split("\n")
    )
    code, shown = check(tmp_path, text)
    assert (code, f"run chmod 600 {token.name}" in shown) == (0, True)
    token.chmod(0o600)
    assert check(tmp_path, text)[1].startswith("OK: ")
    with contextlib.chdir(tmp_path):
        (tmp_path / "service.yml").write_text(CONFIG)
        (tmp_path / "service.yml").chmod(0o644)
        assert "run chmod 600 service.yml" in CliRunner().invoke(main, ["service", "check"]).output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "analyzers: {clamav: {address: '127.0.0.1:PORT'}}\n",
            "service.yml:9: analyzers.clamav.address: clamav cannot",
        ),
        ("analyzers: {clamav: {address: 'unix:/absent/clamd'}}\n", "clamav cannot be reached at unix:/absent/clamd"),
        ("analyzers: {rspamd: {url: 'http://127.0.0.1:PORT'}}\n", "analyzers.rspamd.url: rspamd cannot be reached"),
        ("analyzers: {plugins: {absent: {}}}\n", "service.yml:9: analyzers.plugins.absent: "),
    ],
)
def test_what_the_configuration_refers_to_is_tried(tmp_path, more, said):
    text = CONFIG + more.replace("PORT", str(free_port()))
    code, shown = check(tmp_path, text)
    assert (code, said in shown) == (1, True), shown


def test_a_core_node_that_does_not_answer(tmp_path):
    hosts = f"hosts: ['http://127.0.0.1:{free_port()}']"
    code, shown = check(tmp_path, CONFIG.replace("core: {}", f"core: {{{hosts}}}"))
    assert (code, "service.yml:5: abby.serviceProviders.core.hosts: http://127.0.0.1:" in shown) == (1, True)


def test_a_database_that_cannot_be_written(tmp_path):
    code, shown = check(tmp_path, CONFIG.replace("sqlite:///service.sqlite", "sqlite:////proc/absent/x"))
    assert (code, "database: PROBLEM: service.yml:8: database: /proc cannot be written to" in shown) == (1, True), shown
    code, shown = check(
        tmp_path, CONFIG.replace("sqlite:///service.sqlite", f"postgresql://x@127.0.0.1:{free_port()}/x")
    )
    assert (code, "service.yml:8: database: cannot use the database" in shown) == (1, True), shown


def test_a_misspelled_database_was_an_empty_one_without_a_word(tmp_path):
    """A second service was to use the first one's lists and keys, and got a new file."""
    named = tmp_path / "shared.sqlite"
    config = CONFIG.replace("sqlite:///service.sqlite", f"sqlite:///{named}")
    code, shown = check(tmp_path, config)
    said = f"database: NOTE: service.yml:8: database: {named} does not exist; the service will create it, without lists"
    assert (code, said in shown) == (0, True), shown
    named.touch()
    code, shown = check(tmp_path, config)
    assert (code, "NOTE" in shown) == (0, False), shown


def test_a_file_that_is_missing_is_named(tmp_path):
    """Not the first line of a file that has nothing to do with it."""
    (tmp_path / "service.yml").write_text("{}\n")
    done = CliRunner().invoke(main, ["service", "check", "-c", str(tmp_path)])
    for name in ("guard/core/guard.yml", "abby/abby/abby.yml"):
        assert f"{tmp_path / name}: there is no such file" in done.output, done.output


def test_a_key_of_ours_in_a_documented_file_is_said_to_be_in_the_wrong_place(tmp_path):
    (tmp_path / "guard/core").mkdir(parents=True)
    (tmp_path / "guard/core/guard.yml").write_text("scanSources: {restApi: {}}\nlisten: 127.0.0.1:1\nother: 1\n")
    done = CliRunner().invoke(main, ["service", "check", "-c", str(tmp_path)])
    assert "guard.yml:2: " in done.output and ": this key belongs in service.yml; here, it is ignored" in done.output
    assert done.output.count("does not use this key") == 1
