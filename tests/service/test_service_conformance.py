"""docs/reference/conformance.md names only tests that exist, and the tests that it needed and nothing else had."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from pydantic import ValidationError

from bridge.api.feedback import FEEDBACK_PATH
from bridge.api.lists import LISTS_PREFIX
from bridge.service import openapi
from bridge.service.abby_settings import StaticApiToken
from bridge.service.settings import ServiceConfig
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    EICAR,
    GTUBE,
    TOKEN,
    Answer,
    Lists,
    ServiceProcess,
    attached,
    mail,
    service,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "conformance.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


# The table


@cache
def functions_of(path: Path) -> set[str]:
    """Those that pytest would collect: at the top of a module."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: value)
def test_a_test_of_the_table_exists(file, name):
    """A statement whose test was renamed or removed is no longer kept by anything."""
    path = ROOT / file if "/" in file else ROOT / "tests" / "service" / file
    assert path.is_file()
    assert name.startswith("test_") and name in functions_of(path)


def test_every_row_has_a_test():
    """No statement stands in the table without one."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "test" not in row[1].split()]  # the heads of the tables
    assert len(rows) > 70
    for row in rows:
        assert len(row) == 3 and re.search(r"`[\w/]+\.py::test_\w+`", row[1]), row


# Statements that no other test held


def test_scanning_is_optional(tmp_path):
    """A service that only has the lists is a whole one."""
    with service(tmp_path, CONFIG.replace("scanSources: {restApi: {}}", "mainWorkerCount: 3"), True) as running:
        lists = Lists(running)
        assert lists.add("blocked-senders", "a@example.org").json == {"modifiedEntries": 1}
        assert [entry["entry"] for entry in lists.entries("blocked-senders")] == ["a@example.org"]
        refused = running.submit(mail())
        assert (refused.status, refused.json["error"]) == (403, "scan_source_disabled")


def test_every_other_body_is_json(tmp_path):
    """Answers of both interfaces, whether they are a success or not."""

    def is_json(answer: Answer) -> bool:
        return answer.headers["Content-Type"] == "application/json" and isinstance(answer.json, dict)

    with service(tmp_path, with_key=True) as running:
        lists = Lists(running)
        assert all(map(is_json, (running.submit(mail()), running.status(), running.submit(mail(), "wrong"))))
        assert all(map(is_json, (lists.add("blocked-senders", "a@b.example"), lists.call("getLists", {}))))
        assert is_json(lists.delete("blocked-senders", "a@b.example")) and is_json(lists.call("getLists", []))


def test_a_service_without_tokens_scans_for_nobody(tmp_path):
    """It is not an open one: without `staticApiTokens`, no token is valid. The lists have keys of their own."""
    text = CONFIG[: CONFIG.index("  staticApiTokens")] + CONFIG[CONFIG.index("database:") :]
    with service(tmp_path, text, with_key=True) as running:
        assert running.submit(mail()).status == running.submit(mail(), token="").status == 401
        assert running.status().status == 401
        assert running.request("GET", "/readyz").status == 503
        assert Lists(running).call("getLists", {}).status == 200


def test_a_changed_configuration_is_used_after_a_restart(tmp_path):
    """And not before, unless it is told to reload."""
    found = []
    for change in ("", "decisions: {otherwise: drop}\n"):
        (tmp_path / "service.yml").write_text(CONFIG + change)
        process = ServiceProcess(tmp_path)
        try:
            process.wait()
            (tmp_path / "service.yml").write_text(CONFIG + "decisions: {otherwise: drop}\n")
            found.append(process.submit(mail()).json["decision"])
        finally:
            assert process.end() == 0
    assert found == ["deliver", "drop"]


def test_the_answer_has_all_tags(tmp_path):
    """Not only those that decided: the first rule that matches is about one of them."""
    odd = mail(GTUBE + b"http://192.0.2.1/\r\n", Date="yesterday")
    with service(tmp_path, with_key=True) as running:
        Lists(running).add("blocked-senders", "a@example.org")
        wait_for(lambda: "list:blocked-senders" in running.submit(odd).json["tags"])
        found = running.submit(odd).json
    assert {"spam:gtube", "url:ip-host", "header:bad-date", "list:blocked-senders"} <= set(found["tags"])
    assert (found["decision"], found["verdict"]) == ("bounce", "blocked")


def test_fields_of_ours_are_additions(tmp_path):
    """The documented ones stay as they are, and a mail that has nothing to report has only those."""
    documented = {"ggrid", "created", "completed", "decision", "verdict", "tags"}
    with service(tmp_path) as running:
        assert running.submit(mail()).json.keys() == documented
        found = running.submit(mail(EICAR)).json
    assert found.keys() - documented == {"scoring"} and documented < found.keys()


def test_the_mail_is_analyzed_byte_for_byte(tmp_path):
    """The digest of an attachment with every byte is found: nothing on the way changes one."""
    content = bytes(range(256)) * 300
    with service(tmp_path, with_key=True) as running:
        Lists(running).add("blocked-attachments", hashlib.sha256(content).hexdigest())
        wait_for(lambda: "list:blocked-attachments" in running.submit(attached(content)).json["tags"])
        binary = mail(content, MIME_Version="1.0", Content_Type="application/x", Content_Transfer_Encoding="binary")
        assert "list:blocked-attachments" in running.submit(binary).json["tags"]
        assert "list:blocked-attachments" not in running.submit(binary.replace(b"\x80\x81", b"\x80")).json["tags"]


def test_every_scope_has_every_list(tmp_path):
    with service(tmp_path, with_key=True) as running:
        lists = Lists(running)
        own = lists.call("getLists", {}).json
        tenant = lists.call("getLists", {"tenantUid": "123e4567-e89b-12d3-a456-426614174000"}).json
    assert own == tenant and own["listFileInfos"]


def test_the_document_has_no_events():
    """A client is never called back."""
    described = openapi.document()
    assert "webhooks" not in described
    assert not [path for path, methods in described["paths"].items() if "callbacks" in json.dumps(methods)]


@contextmanager
def slow_rspamd(delay_s: float):
    """A server in place of rspamd, which answers every request late."""

    def serve() -> None:
        while True:
            try:
                client = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client:
            client.recv(65536)
            released.wait(delay_s)
            body = json.dumps({"score": 0, "symbols": {}, "action": "no action"}).encode()
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))

    released = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            released.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE_S)


def test_the_answer_waits_for_the_analysis(tmp_path):
    """The result says when the analysis began and when it was complete."""
    with slow_rspamd(0.5) as url, service(tmp_path, CONFIG + f"analyzers: {{rspamd: {{url: '{url}'}}}}\n") as running:
        start = time.monotonic()
        answer = running.submit(mail())
        assert time.monotonic() - start >= 0.5
    assert answer.status == 200
    created, completed = (datetime.fromisoformat(answer.json[name]) for name in ("created", "completed"))
    assert (completed - created).total_seconds() >= 0.4


ONE_SECOND = f"""
listen: 127.0.0.1:0
guard: {{scanSources: {{restApi: {{}}}}}}
abby:
  serviceProviders: {{core: {{hosts: [], longRequestTimeout: 1000}}}}
  staticApiTokens: [{{name: test, token: {TOKEN}}}]
database: sqlite:///service.sqlite
analyzers: {{rspamd: {{url: 'URL'}}}}
"""


def test_an_analysis_over_the_long_request_timeout_is_504(tmp_path):
    """The client gets an Error object instead of a result, and the slot is free again."""
    with slow_rspamd(30) as url, service(tmp_path, ONE_SECOND.replace("URL", url)) as running:
        answer = running.submit(mail())
        assert (answer.status, answer.json["error"]) == (504, "analysis_timeout")
        assert running.status().json == {"messageQueueStatus": "GREEN"}


@pytest.mark.parametrize("decision", ["undecided", "deliver", "quarantine", "bounce", "drop"])
def test_each_decision_can_be_the_answer(tmp_path, decision):
    rules = f"decisions: {{rules: [{{tags: ['*'], verdict: chosen, decision: {decision}}}]}}\n"
    with service(tmp_path, CONFIG + rules) as running:
        answer = running.submit(mail(GTUBE)).json
    assert (answer["verdict"], answer["decision"]) == ("chosen", decision)


def test_every_refusal_is_an_error_object(tmp_path):
    """Of both interfaces, whatever the reason."""
    with service(tmp_path, with_key=True) as running:
        lists, token = Lists(running), {"Authorization": f"Bearer {TOKEN}"}
        refusals = {
            400: running.upload(b"x"),
            401: running.submit(mail(), token="wrong"),
            404: lists.call("listEntries", {"listName": "none"}),
            405: running.request("GET", f"{LISTS_PREFIX}/getLists"),
            409: lists.add("blocked-networks", "not a network"),
            413: running.request("POST", "/v1/messageQueue/submitEmail", b"", {**token, "Content-Length": "60000000"}),
            415: running.upload(b"x", content_type="text/plain"),
        }
    for status, answer in refusals.items():
        assert answer.status == status
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json.keys() <= {"error", "message"}
        assert all(isinstance(value, str) and value for value in answer.json.values())
        assert openapi.ERRORS[answer.json["error"]][0] == status


def test_a_download_has_one_object_per_line(tmp_path):
    """Every line ends, also the last one; a line end in a comment does not begin a line."""
    with service(tmp_path, with_key=True) as running:
        lists = Lists(running)
        lists.add("blocked-senders", "a@example.org", "b@example.org", comment="one\ntwo\r\n\u2028three")
        answer = lists.call("listEntries", {"listName": "blocked-senders"})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    *entries, end = answer.body.split(b"\n")
    assert end == b""
    assert [json.loads(line)["entry"] for line in entries] == ["a@example.org", "b@example.org"]
    assert {json.loads(line)["comment"] for line in entries} == {"one\ntwo\r\n\u2028three"}


def test_the_default_port_is_9081():
    assert str(ServiceConfig.model_fields["listen"].default) == "127.0.0.1:9081"


@pytest.mark.parametrize("missing", ["name", "token"])
def test_the_fields_of_a_static_token(missing):
    """Without `permissions` a token may do everything."""
    given = {"name": "bridge", "token": TOKEN}
    assert StaticApiToken.model_validate(given).permissions == []
    with pytest.raises(ValidationError):
        StaticApiToken.model_validate({key: value for key, value in given.items() if key != missing})


def test_the_document_has_the_version_of_the_interface():
    described = openapi.document()
    assert described["info"]["version"] == "1.1.0"
    paths = {path for path, methods in described["paths"].items() if "post" in methods}
    assert paths - {FEEDBACK_PATH} == {  # our only extension of the interface
        "/v1/messageQueue/submitEmail",
        "/v1/admin/status",
        *(f"/api/public/lists/v1/{name}" for name in ("addEntries", "deleteEntries", "getLists", "listEntries")),
    }
