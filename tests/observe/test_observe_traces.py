"""Traces: a span for each mail at a real OTLP receiver, `traceparent` at the scanner, and nothing if tracing is off."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.mail.trace_context import new_trace
from bridge.runtime import yaml_file
from bridge.testing import answer, free_port, running_bridge, until
from tests.daemon.process_kit import ROOT, environment, scanbridge, write_config


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """An OTLP receiver: its address, and the spans it received."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request.resource_spans:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                assert names["service.name"] == "scanbridge" and names["host.name"] == "bridge.example"
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not print requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def words(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in span.attributes}


def test_a_mail_is_a_span_with_child_spans(tmp_path, caplog) -> None:
    """The scanner gets the id of the scan's span; the log line has the trace id; no address is sent."""
    caplog.set_level("INFO")
    throttled = {"max_in_processing": 2, "throttle_threshold": 1, "throttle_max_delay": "50ms"}
    before = time.time_ns()
    with collector() as (endpoint, spans):
        with (
            running_bridge(tmp_path, {"tracing": {"endpoint": endpoint}, "admission": throttled}) as bridge,
            bridge.client() as client,
        ):
            client.open()
            bridge.background.loop.call_soon_threadsafe(bridge.daemon.admission.enter)  # the next mail has to wait
            client.mail()
            bridge.background.loop.call_soon_threadsafe(bridge.daemon.admission.leave)
            bridge.scanner.reply = answer(503)
            client.mail()
        (delivered, _), submissions = [s for s in spans if s.name == "mail"], bridge.scanner.submissions
    parts = {span.name: span for span in spans if span.trace_id == delivered.trace_id}
    assert set(parts) == {"mail", "wait", "scan", "relay"}
    assert all(parts[name].parent_span_id == delivered.span_id for name in ("wait", "scan", "relay"))
    assert not delivered.parent_span_id
    times = [(parts[name].start_time_unix_nano, parts[name].end_time_unix_nano) for name in ("wait", "scan", "relay")]
    assert sorted(times) == times
    for began, ended in times:
        assert (
            before <= delivered.start_time_unix_nano <= began < ended <= delivered.end_time_unix_nano <= time.time_ns()
        )
    assert times[0][1] - times[0][0] >= 40_000_000
    trace, scan = delivered.trace_id.hex(), parts["scan"].span_id.hex()
    assert submissions[0].fields["traceparent"] == f"00-{trace}-{scan}-01"
    (line,) = [record.getMessage() for record in caplog.records if f"trace_id={trace}" in record.getMessage()]
    about = words(delivered)
    assert f"id={about['scanbridge.id']} " in line and about["scanbridge.decision"] == "deliver"
    assert about["scanbridge.next_id"] == "NEXT1" and about["scanbridge.code"] == "250"
    assert not [value for span in spans for value in words(span).values() if "@" in value]
    failed = [span for span in spans if span.name == "mail" and span.trace_id != delivered.trace_id]
    assert [words(span)["error.type"] for span in failed] == ["unavailable"] and failed[0].status.code == 2


def test_a_sample_is_a_share_of_the_mail(tmp_path) -> None:
    """With 0 percent no mail is traced, and no traceparent is sent."""
    with collector() as (endpoint, spans):
        tracing = {"endpoint": endpoint, "sample_percent": 0}
        with running_bridge(tmp_path, {"tracing": tracing}) as bridge, bridge.client() as client:
            client.open()
            client.mail()
        assert not spans and "traceparent" not in bridge.scanner.submissions[0].fields


def test_a_collector_that_hangs_costs_no_mail_and_no_time(tmp_path) -> None:
    """Mail and shutdown are not delayed."""
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        endpoint = f"http://127.0.0.1:{black_hole.getsockname()[1]}/v1/traces"
        with running_bridge(tmp_path, {"tracing": {"endpoint": endpoint}}) as bridge:
            with bridge.client() as client:
                client.open()
                for _ in range(50):
                    assert client.mail().startswith(b"250 ")
            began = time.monotonic()
        assert time.monotonic() - began < 8


def test_spans_in_clear_text_went_through_a_proxy_of_the_environment(tmp_path, monkeypatch) -> None:
    """To a collector on this machine; nobody answers at this proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with collector() as (endpoint, spans):
        tracing = {"endpoint": endpoint}
        with running_bridge(tmp_path, {"tracing": tracing, "hostname": "bridge.example"}) as bridge:
            with bridge.client() as client:
                client.open()
                assert client.mail().startswith(b"250 ")
            until(lambda: any(span.name == "mail" for span in spans), "the span of the mail")


def test_without_tracing_nothing_is_loaded_and_no_header_is_sent(bridge) -> None:
    with bridge.client() as client:
        client.open()
        client.mail()
    assert not {name.lower() for name in bridge.scanner.submissions[0].fields} & {"traceparent", "tracestate"}
    loaded = "any(name.startswith('opentelemetry') for name in sys.modules)"
    code = f"import sys, bridge.cli, bridge.daemon.daemon; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_without_the_extra_the_configuration_is_refused(tmp_path) -> None:
    """The error says what to install; exit code 78 prevents a restart."""
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not here')\n")
    tracing = {"endpoint": "http://127.0.0.1:4318/v1/traces"}
    config, *_ = write_config(tmp_path, "http://127.0.0.1:9", "smtp://127.0.0.1:9", tracing=tracing)
    done = scanbridge("run", "-c", config, env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert done.returncode == 78 and "pip install 'scanbridge[otel]'" in done.stderr


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://host/", "http:///x"])
def test_an_endpoint_is_an_http_address(tmp_path, endpoint) -> None:
    config, *_ = write_config(tmp_path, "http://127.0.0.1:9", "smtp://127.0.0.1:9", tracing={"endpoint": endpoint})
    with pytest.raises(ConfigError, match=r"tracing\.endpoint"):
        yaml_file.load(config, Config)


def test_ids_have_the_standard_format() -> None:
    """Lower-case hex digits, different each time, in practice never all zeros."""
    first, second = new_trace(), new_trace()
    assert re.fullmatch(rb"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01\r\n", first.header)
    assert len({first.trace_id, second.trace_id, first.mail_id, first.scan_id}) == 4


def test_a_token_in_the_collectors_url_is_not_shown(tmp_path, caplog) -> None:
    """An unreachable collector was logged with the whole URL, and `check` and `config show` printed it."""
    caplog.set_level("DEBUG")
    endpoint = f"http://user:sesame@127.0.0.1:{free_port()}/v1/traces?token=sesame"
    with running_bridge(tmp_path, {"tracing": {"endpoint": endpoint}}) as bridge, bridge.client() as client:
        client.open()
        assert client.mail().startswith(b"250 ")
        until(lambda: "Max retries exceeded" in caplog.text, "the exporter's warning")
    tracing = {"endpoint": endpoint}
    config, *_ = write_config(tmp_path, "http://127.0.0.1:9", "smtp://127.0.0.1:9", tracing=tracing)
    commands = (("check",), ("config", "show"), ("config", "show", "--json"))
    shown = [scanbridge(*command, "-c", config).stdout for command in commands]
    assert not [text for text in (caplog.text, *shown) if "sesame" in text]
    assert "/v1/traces?..." in caplog.text and "/v1/traces?…" in shown[1]
