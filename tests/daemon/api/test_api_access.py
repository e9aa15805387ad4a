"""Who may ask, and how: tokens, methods, header fields, reload; and what the pages beside the API still do."""

from __future__ import annotations

import json
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.cli.check import local
from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, running_bridge, until
from tests.daemon.api.api_kit import ALL, ONLY_A, TENANT_A, ask, bridge, mails, send, write_tokens
from tests.daemon.process_kit import running as running_process
from tests.daemon.process_kit import scanbridge
from tests.processes import children, command_line, is_running

HISTORY, STATS, MAIL = "/api/v1/history", "/api/v1/stats?by=day", "/api/v1/mails/1A1E3F3139AF066FEF9"
PATHS = (HISTORY, STATS, MAIL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with bridge(tmp_path_factory.mktemp("api")) as found:
        yield found


@pytest.mark.parametrize("path", PATHS)
def test_nobody_may_ask_without_a_token_of_the_configuration(running: RunningBridge, path: str) -> None:
    """Wrong, empty, shortened, lengthened, twice, in another scheme: 401, and always with the same words."""
    port = running.admin_port
    for token in (None, "", "wrong", ALL[:-1], ALL + "x", ALL.upper(), "é" * 20, "x" * 60000):
        refused = ask(port, path, token if token is None else token.encode("utf-8").decode("latin-1"))
        assert (refused.status, refused.json["error"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith('Bearer realm="scanbridge"')
    for given in (f"Basic {ALL}", ALL, "Bearer", f"Bearer,{ALL}", f"Token {ALL}"):
        assert ask(port, path, None, headers={"Authorization": given}).status == 401
    assert ask(port, f"{path}{'&' if '?' in path else '?'}token={ALL}", None).status == 401
    assert ask(port, path, None, headers={"authorization": f"bearer  {ALL} "}).status in (200, 404)


def test_two_authorization_fields_are_refused(running: RunningBridge) -> None:
    """A proxy and the daemon must not read different ones."""
    request = (
        f"GET {HISTORY} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\n"
        f"Authorization: Bearer wrong\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", running.admin_port), timeout=60) as sock:
        sock.sendall(request.encode())
        assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 401 ")


def test_without_configured_tokens_the_answer_says_how_to_configure_one(tmp_path: Path) -> None:
    """Even for a client that sends one; the pages beside the API need none."""
    with running_bridge(tmp_path) as running:
        assert 'scanbridge_api_requests_total{result="denied"} 0.0' in ask(running.admin_port, "/metrics").body.decode()
        for path in PATHS:
            refused = ask(running.admin_port, path)
            assert (refused.status, refused.json["error"]) == (403, "no_tokens")
            assert "api.tokens" in refused.json["message"]
        for page in ("/metrics", "/readyz", "/livez", "/healthz", "/status", "/", "/api/v1/openapi.json"):
            assert ask(running.admin_port, page, None).status == 200, page
        assert 'scanbridge_api_requests_total{result="denied"} 3.0' in ask(running.admin_port, "/metrics").body.decode()


@pytest.mark.parametrize("path", [*PATHS, "/api/v1/openapi.json"])
def test_only_reading_is_supported(running: RunningBridge, path: str) -> None:
    """Other methods get 405 and change nothing; HEAD is GET without the body."""
    port = running.admin_port
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND"):
        refused = ask(port, path, method=method)
        assert refused.status in (400, 405), method  # the parser does not know all methods
        if refused.status == 405:
            assert refused.headers["allow"] == "GET, HEAD"
            assert refused.json["error"] == "method_not_allowed"
    got, head = ask(port, path), ask(port, path, method="HEAD")
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["content-type"] == got.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path", [*PATHS, "/api/v1/openapi.json", "/api/v1/history?x", "/api/v1/nothing", "/api", "/api/"]
)
def test_no_answer_is_cached_or_shared_with_other_origins(running: RunningBridge, path: str) -> None:
    """Neither for simple requests nor for those that browsers ask about first."""
    for method in ("GET", "OPTIONS"):
        fields = {"Origin": "https://other.example", "Access-Control-Request-Method": "GET"}
        found = ask(running.admin_port, path, method=method, headers=fields)
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in found.headers if name.startswith("access-control-")]
        assert found.headers["content-type"] == "application/json"
        assert found.status == 200 or found.json["error"]


def test_paths_that_do_not_exist(running: RunningBridge) -> None:
    """404 with a hint; neither dots nor escapes lead anywhere."""
    port = running.admin_port
    assert ask(port, "/api/v1/histroy").json["message"].endswith("did you mean /api/v1/history?")
    for path in (
        "/api/v1", "/api/v2/history", "/api/v1/history/", "/api/v1/history/x", "/api/v1/mails/", "/api/v1/mails",
        "/api/v1/mails/a/b", "/api/v1/mails/a%2fb", "/api/v1/mails/..%2f..%2fetc%2fpasswd", "/api/v1/mails/%00",
        "/api/v1/mails/%ff", "/api/v1/mails/'%20OR%201=1", "/api/v1/mails/../../metrics", f"/api/v1/mails/{'A' * 65}",
        "/api/v1/mails/ABC", "/API/v1/history", "/api//v1/history",
    ):  # fmt: skip
        found = ask(port, path)
        assert found.status == 404, path
        if path.startswith("/api"):
            assert found.json["error"] == "not_found", path


def test_a_reload_replaces_tokens(tmp_path: Path) -> None:
    """Two tokens work at once, then the old one is refused; a bad file changes nothing."""
    api = write_tokens(tmp_path)
    with running_bridge(tmp_path, {"api": {"tokens": []}}) as running:
        port = running.admin_port

        def reload(*tokens: dict[str, object]) -> None:
            data = json.loads(running.daemon.config.model_dump_json(exclude_none=True))
            conf = yaml_file.load(
                tmp_path / "bridge.yml", Config, yaml_file.dump({**data, "api": {"tokens": [*tokens]}})
            )
            running.background.run(running.daemon.reload(lambda: conf))

        old, new = api["tokens"][0], {key: value for key, value in api["tokens"][1].items() if key != "tenants"}
        assert ask(port, HISTORY).status == 403
        reload(old)
        assert (ask(port, HISTORY, ALL).status, ask(port, HISTORY, ONLY_A).status) == (200, 401)
        reload(old, new)
        assert (ask(port, HISTORY, ALL).status, ask(port, HISTORY, ONLY_A).status) == (200, 200)
        reload(new)
        assert (ask(port, HISTORY, ALL).status, ask(port, HISTORY, ONLY_A).status) == (401, 200)
        (tmp_path / "a-token").write_text("")
        reload(new)
        assert not running.daemon.reloads.ok and "api.tokens.0.token_file" in running.daemon.reloads.problem
        assert ask(port, HISTORY, ONLY_A).status == 200
        (tmp_path / "a-token").write_text("another-token-" + 40 * "y")
        reload(new)
        assert ask(port, HISTORY, ONLY_A).status == 401


def test_mistakes_in_the_configuration(tmp_path: Path) -> None:
    """Two tokens with one name or one secret, no tenant, a missing file: each is refused with its key."""
    write_tokens(tmp_path)
    (tmp_path / "copy").write_text(ALL)

    def start(*tokens: dict[str, object]) -> str:
        with pytest.raises(ConfigError) as raised, running_bridge(tmp_path, {"api": {"tokens": [*tokens]}}):
            pass
        return str(raised.value)

    one = {"name": "one", "token_file": "all-token"}
    assert "two tokens are named one" in start(one, {"name": "one", "token_file": "a-token"})
    assert "one and two have the same token" in start(one, {"name": "two", "token_file": "copy"})
    assert "api.tokens.0.tenants" in start({**one, "tenants": []})
    assert "UUID" in start({**one, "tenants": ["x"]})
    missing = start({"name": "one", "token_file": "nothing"})
    assert missing.startswith("api.tokens.0.token_file: ") and "cannot be read" in missing
    assert ALL not in start(one, {"name": "two", "token_file": "copy"})


def test_tokens_are_never_shown(tmp_path: Path) -> None:
    """Neither in the log nor in any page, and not in the process list; and several workers all answer."""
    sections = {"api": write_tokens(tmp_path), "workers": 2, "log": {"level": "debug"}}
    with running_process(tmp_path, {"is_program": True}, **sections) as (process, _, _):
        for _ in range(4):
            process.send()
        for _ in range(20):  # some worker answers each
            mails(process.admin, 4)
        ask(process.admin, HISTORY, "a-wrong-token-that-is-secret-too")
        ask(process.admin, "/api/v1/history?x=1")
        shown = process.log + process.output
        for page in ("/status", "/metrics", "/", "/readyz", "/api/v1/openapi.json"):
            shown += ask(process.admin, page).body.decode()
        shown += scanbridge("config", "show", "-c", process.directory / "bridge.yml").stdout
        shown += scanbridge("check", "-v", "-c", process.directory / "bridge.yml").stdout
        for place in ("cmdline", "environ"):
            shown += Path(f"/proc/{process.process.pid}/{place}").read_text()
        assert ALL not in shown and ONLY_A not in shown and "secret-too" not in shown
        assert "Traceback" not in process.log


def test_no_search_outlives_the_daemon(tmp_path: Path) -> None:
    """Also if the daemon is killed; and a stop does not wait for searches."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        (tmp_path / number.name).mkdir()
        with running_process(tmp_path / number.name, api=write_tokens(tmp_path / number.name)) as (process, _, _):
            assert ask(process.admin, HISTORY).status == 200
            (searcher,) = _searchers(process.process.pid)
            process.signal(number)
            process.wait()
            until(lambda pid=searcher: not is_running(pid), "the search to end")


def _searchers(pid: int) -> list[int]:
    return [child for child in children(pid) if "searcher" in command_line(child)]


def test_check_warns_of_tokens_on_an_unencrypted_network(tmp_path: Path) -> None:
    """Loopback and Unix sockets are fine; so are other addresses without tokens."""
    (tmp_path / "token").write_text("x" * 40)
    (tmp_path / "token").chmod(0o644)
    tokens = f"api: {{tokens: [{{name: one, token_file: token, tenants: [{TENANT_A}]}}]}}\n"

    def warnings(address: str, more: str) -> list[str]:
        text = (
            "scanner: {urls: ['http://127.0.0.1:1'], token_file: token}\n"
            "listeners: [{name: mx, address: '127.0.0.1:1'}]\nrelay: {next_hop: 'smtp://127.0.0.1:2'}\n"
            f"admin: {{address: '{address}'}}\n{more}"
        )
        conf = yaml_file.load(tmp_path / "bridge.yml", Config, text)
        return [finding.warning for finding in local.check_api(conf) if finding.warning]

    (open_to_all,) = warnings("127.0.0.1:9082", tokens)
    assert "chmod 600" in open_to_all
    (tmp_path / "token").chmod(0o600)
    known = f"tenants: [{{uid: {TENANT_A}, recipient_domains: [a.example]}}]\n"
    assert warnings("0.0.0.0:9082", "") == []
    for address in ("127.0.0.1:9082", "[::1]:9082", "unix:/run/admin.sock"):
        assert warnings(address, tokens + known) == []
    for address in ("0.0.0.0:9082", "192.0.2.1:9082", "[::]:9082"):
        (plain,) = warnings(address, tokens + known)
        assert "unencrypted" in plain and "TLS" in plain
    (unknown,) = warnings("127.0.0.1:9082", tokens)
    assert TENANT_A in unknown and "not in `tenants`" in unknown


def test_addresses_are_found_as_the_history_has_them(tmp_path: Path) -> None:
    """With `log.addresses: hashed`, by the address itself; with `domain`, by the domain only."""
    (tmp_path / "hashed").mkdir()
    (tmp_path / "domain").mkdir()
    with bridge(tmp_path / "hashed", {"log": {"addresses": "hashed"}}) as running:
        send(running, message_id="<one@client.example>")
        (mail,) = mails(running.admin_port, 1)
        assert mail["sender"].startswith("~") and "client.example" not in mail["sender"]
        for query in (
            {"sender": "john@client.example"}, {"recipient": "jane@a.example"}, {"address": "jane@A.example"},
            {"what": "<one@client.example>"}, {"what": "one@client.example"}, {"sender": mail["sender"]},
        ):  # fmt: skip
            assert ask(running.admin_port, HISTORY, **query).json["mails"] == [mail], query
        assert ask(running.admin_port, HISTORY, sender="jane@client.example").json["mails"] == []
    with bridge(tmp_path / "domain", {"log": {"addresses": "domain"}}) as running:
        send(running)
        (mail,) = mails(running.admin_port, 1)
        assert mail["sender"] == "*@client.example"
        assert ask(running.admin_port, HISTORY, sender="@client.example").json["mails"] == [mail]
        refused = ask(running.admin_port, HISTORY, sender="john@client.example")
        assert refused.status == 400 and refused.json["message"].endswith("search for @client.example")


def test_an_answer_waits_for_nothing_that_the_log_should_not_have(
    running: RunningBridge, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests with mistakes leave no line in the log: anybody could fill it."""
    with caplog.at_level(logging.DEBUG, "bridge"):
        for path in ("/api/v1/history?x=1", "/api/v1/nothing", HISTORY):
            ask(running.admin_port, path, "wrong")
    assert not [record for record in caplog.records if record.name.startswith("bridge.daemon.http_api")]
    until(lambda: ask(running.admin_port, HISTORY).status == 200, "the history")
