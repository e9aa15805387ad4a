"""OpenTelemetry: one span per mail, with child spans for waiting, scanning and relaying.

The filter knows only the ids (`bridge.mail.trace_context`) and notes when each step began. Spans are created here, when
the mail is finished, and sent by a thread from a bounded queue: a slow or unreachable collector costs spans,
never mail. This module is imported only if tracing is configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from bridge import __version__
from bridge.filter.outcome import Record
from bridge.mail.trace_context import Trace, new_trace
from bridge.observe.metrics import reason_of
from bridge.runtime.shown_url import without_queries

log = logging.getLogger(__name__)

MAX_SPANS = 4096  # waiting to be sent; the oldest are dropped beyond this
_EVERY_S = 1.0
_SEND_S = 5.0
_CLOSE_S = 2.0  # to send the remaining spans at exit

_random = random.Random()  # noqa: S311 - chooses a sample, protects nothing
_SCOPE = InstrumentationScope("scanbridge", __version__)


class _WithoutQueries(logging.Filter):
    """The exporter logs the URL of a collector that it cannot reach, with a token that may be in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_queries(record.getMessage()), None
        return True


logging.getLogger(OTLPSpanExporter.__module__).addFilter(_WithoutQueries())


class Tracing:
    """`begin` when a mail arrives, `report` when it is finished."""

    def __init__(self, endpoint: str, sample_percent: float, hostname: str) -> None:
        self._sample_percent = sample_percent
        attributes = {"service.name": "scanbridge", "service.version": __version__, "host.name": hostname}
        self._resource = Resource(attributes)
        self._sender = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_S, session=_session(endpoint)),
            max_queue_size=MAX_SPANS,
            schedule_delay_millis=_EVERY_S * 1000,
            export_timeout_millis=_SEND_S * 1000,
        )

    def begin(self) -> Trace | None:
        """The ids for a new mail; None if it is not in the sample."""
        if self._sample_percent < 100 and _random.random() * 100 >= self._sample_percent:
            return None
        return new_trace()

    def report(self, record: Record) -> None:
        """Create and queue the spans of a finished mail."""
        if record.trace is not None:
            for span in self._spans(record, record.trace, time.monotonic()):
                self._sender.on_end(span)

    async def close(self) -> None:
        """Send the remaining spans, if that takes no longer than two seconds."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()
        shutdown: Callable[[], None] = self._sender.shutdown

        def send() -> None:
            shutdown()
            try:
                loop.call_soon_threadsafe(sent.set)
            except RuntimeError:  # the event loop has already ended
                pass

        threading.Thread(target=send, name="tracing-end", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await sent.wait()
        except TimeoutError:
            log.warning("tracing: the remaining spans could not be sent in time")

    def _spans(self, record: Record, trace: Trace, now: float) -> Iterator[ReadableSpan]:
        for name, span_id, began, took, kind in (
            ("wait", "", record.wait_at, record.wait_s, SpanKind.INTERNAL),
            ("scan", trace.scan_id, record.scan_at, record.scan_s, SpanKind.CLIENT),
            ("relay", "", record.relay_at, record.relay_s, SpanKind.CLIENT),
        ):
            if began:
                context = _context(trace, span_id or os.urandom(8).hex())
                yield self._span(
                    name, trace, context, began, began + took, kind=kind, parent=_context(trace, trace.mail_id)
                )
        yield self._span(
            "mail",
            trace,
            _context(trace, trace.mail_id),
            trace.began_at,
            now,
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            status=Status(StatusCode.UNSET if record.error is None else StatusCode.ERROR),
        )

    def _span(
        self, name: str, trace: Trace, context: SpanContext, began: float, ended: float, **more: Any
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            resource=self._resource,
            start_time=trace.began_ns + int((began - trace.began_at) * 1e9),
            end_time=trace.began_ns + int((ended - trace.began_at) * 1e9),
            instrumentation_scope=_SCOPE,
            **more,
        )


def _session(endpoint: str) -> requests.Session:
    """Without TLS, a proxy in the environment would read the spans, and a token in the URL."""
    session = requests.Session()
    session.trust_env = endpoint.startswith("https:")
    return session


def _context(trace: Trace, span_id: str) -> SpanContext:
    return SpanContext(int(trace.trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))


def _attributes(record: Record) -> dict[str, Any]:
    """Our own ids and words only: no address and no content."""
    session, outcome = record.tx.session, record.outcome
    result = outcome.result if outcome is not None else None
    found = {
        "scanbridge.id": record.tx.id,
        "scanbridge.session": session.id,
        "scanbridge.listener": session.listener,
        "scanbridge.size": record.size,
        "scanbridge.recipients": len(record.tx.envelope.recipients),
        "scanbridge.queue_id": session.client.ident,
        "scanbridge.next_id": record.next_id or None,
        "scanbridge.decision": str(result.decision) if result is not None else None,
        "scanbridge.ggrid": (result.ggrid or None) if result is not None else None,
        "scanbridge.action": str(outcome.action) if outcome is not None else "cancelled",
        "scanbridge.code": outcome.reply.code if outcome is not None else None,
        "error.type": None if record.error is None else reason_of(record.error),
    }
    return {name: value for name, value in found.items() if value is not None}
