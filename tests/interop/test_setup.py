"""What `scanbridge setup postfix` prints, put into a real Postfix: it is valid, and mail passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import FakeScanner, NextHop, answer, configuration, result, running_bridge
from tests.chain import free_port, send
from tests.interop.test_proxy_filter import mail
from tests.postfix_kit import Postfix
from tests.requirements import need

PROTOCOLS = {"proxy": "smtp", "milter": "milter", "content-filter": "smtp"}


def listener(mode: str, **settings: Any) -> dict[str, Any]:
    address = f"127.0.0.1:{free_port()}"
    return {"name": mode, "protocol": PROTOCOLS[mode], "address": address, "profile": f"postfix-{mode}", **settings}


def printed(directory: Path, mode: str, data: dict[str, Any], *options: str) -> Result:
    path = directory / "setup.yml"
    path.write_text(yaml_file.dump(data))
    return CliRunner().invoke(main, ["setup", "postfix", "--mode", mode, "-c", str(path), *options])


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_printed_lines_work_in_postfix(mode, tmp_path, destination, marker):
    """Postfix knows every parameter; a clean mail arrives once, with the client's address; a bad one is refused."""
    need("postfix", root=True)
    front, back = free_port(), free_port()
    settings = {"listeners": [listener(mode)], "relay": {"next_hop": f"smtp://127.0.0.1:{back}"}}
    with running_bridge(tmp_path, settings) as bridge:
        data = configuration(tmp_path, bridge.scanner, bridge.next_hop, settings)
        main_cf, master_cf = (printed(tmp_path, mode, data, "--file", name).stdout for name in ("main.cf", "master.cf"))
        if mode == "milter":
            assert master_cf == ""
            master_cf = "smtp inet n - n - - smtpd\n"
        moved = re.sub(r"(?m)^smtp inet", f"127.0.0.1:{front} inet", master_cf)
        with Postfix(moved, destination.port, f"relay_domains = example.net\n{main_cf}") as postfix:
            assert postfix.complaints() == ""
            assert send(front, mail(marker), xclient="ADDR=192.0.2.7").startswith("250 2.0.0 Ok: queued as ")
            assert marker.encode() in destination.arrived(marker).content
            assert bridge.scanner.submissions[0].parameters["borderMtaData"]["remoteAddress"] == "192.0.2.7"
            if mode != "milter":
                postfix.logged(r"orig_client=\S*192\.0\.2\.7")
            bridge.scanner.reply = answer(200, result("bounce"))
            refused = send(front, mail(marker))
            if mode == "content-filter":
                postfix.logged(r"status=sent.*queued as")
            else:
                assert refused.startswith("550 5.7.1 ")
    assert len(destination.find(marker)) == 1


def without_postfix(tmp_path: Path, *listeners: dict[str, Any], **sections: Any) -> dict[str, Any]:
    scanner, hop = FakeScanner(), NextHop(port=10026)
    scanner.port = 9  # never contacted
    return configuration(tmp_path, scanner, hop, {"listeners": list(listeners), **sections})


def test_times_sizes_and_processes_are_those_of_the_configuration(tmp_path):
    """The lines follow a longer deadline, a smaller limit and more slots."""
    proxy = listener("proxy", deadline="200s", address="0.0.0.0:10025", trusted_clients=["192.0.2.0/24"])
    sections = {"admission": {"max_in_processing": 7}, "limits": {"max_message_size": "10MiB"}}
    shown = printed(tmp_path, "proxy", without_postfix(tmp_path, proxy, **sections))
    assert shown.exit_code == 0
    for line in (
        "smtpd_proxy_timeout = 220s",
        "message_size_limit = 10551296",
        "-o message_size_limit=10477568",
        "smtp inet n - n - 7 smtpd",
        "-o smtpd_proxy_filter=127.0.0.1:10025",
        "127.0.0.1:10026 inet",
    ):
        assert line in shown.stdout
    assert "mailbox_size_limit" not in shown.stdout  # Postfix's own is larger


@pytest.mark.parametrize(
    ("mode", "change", "sections", "words"),
    [
        ("milter", {"profile": "sendmail-milter"}, {}, "add\n  - {name: milter, protocol: milter"),
        ("proxy", {"profile": "haraka"}, {}, "no listener has the postfix-proxy profile"),
        ("proxy", {"address": "systemd:mx"}, {}, "use host:port instead"),
        ("proxy", {"proxy_protocol": True}, {}, "sends no PROXY header"),
        ("content-filter", {"address": "unix:/run/x"}, {}, "use 127.0.0.1:10025"),
        ("proxy", {}, {"relay": {"next_hop": "maildir:/x"}}, "set it to smtp://127.0.0.1:10026"),
    ],
)
def test_unsuitable_configuration_gets_an_error_with_the_fix(tmp_path, mode, change, sections, words):
    """Exit code 78, nothing on standard output; the error names the key and the value to set."""
    shown = printed(tmp_path, mode, without_postfix(tmp_path, listener(mode, **change), **sections))
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert words in shown.stderr and "setup.yml: " in shown.stderr


def test_one_of_several_listeners_is_chosen(tmp_path):
    """It is chosen by name, and the error lists the names."""
    data = without_postfix(tmp_path, listener("proxy", name="a"), listener("proxy", name="b"))
    assert "--listener a or b" in printed(tmp_path, "proxy", data).stderr
    chosen = data["listeners"][1]["address"]
    assert f"smtpd_proxy_filter={chosen}" in printed(tmp_path, "proxy", data, "--listener", "b").stdout
