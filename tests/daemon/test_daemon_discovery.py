"""The daemon with scanner hosts from the DNS: what operators see."""

from __future__ import annotations

import json
from contextlib import ExitStack
from urllib.parse import urlsplit

from bridge.testing import until
from tests.daemon.process_kit import get, parts, scanbridge, start, write_config
from tests.dns_kit import name_server


def test_check_status_and_metrics_show_the_hosts_found(tmp_path) -> None:
    """Mail is scanned at once after the start, and goes on when the name server is gone, which is reported."""
    with name_server(tmp_path) as dns:
        dns.write(scan=["127.0.0.1"])
        found = {"records": "addresses", "nameservers": [f"127.0.0.1:{dns.port}"], "min_interval": "100ms"}
        with parts() as (_, scanner, next_hop), ExitStack() as stack:
            port = urlsplit(scanner.url).port
            url = f"http://scan.example:{port}"
            more = {"discovery": found, "allow_plain_http": True}
            config, *ports = write_config(tmp_path, url, next_hop.url, scanner=more)
            bridge = start(config, *ports)
            stack.callback(bridge.end)
            assert bridge.send().startswith("250")
            checked = scanbridge("check", "-c", config, "-v").stdout
            assert f"discovery of {url}" in checked and f"http://127.0.0.1:{port}" in checked
            dns.stop()
            failing = f'scanbridge_discovery_failing{{url="{url}"}} 1'
            until(lambda: failing in get(bridge.admin, "/metrics")[1], "the failure in the metrics")
            assert f'scanbridge_discovery_hosts{{url="{url}"}} 1' in get(bridge.admin, "/metrics")[1]
            assert bridge.send().startswith("250")
            shown = scanbridge("status", "-c", config, "--json")
            assert [host["url"] for host in json.loads(shown.stdout)["scanner"]] == [f"http://127.0.0.1:{port}"]
            assert "scanner.discovery" in scanbridge("status", "-c", config).stdout
            checked = scanbridge("check", "-c", config)
            assert checked.returncode == 1 and "no scanner host was found in DNS" in checked.stdout + checked.stderr
