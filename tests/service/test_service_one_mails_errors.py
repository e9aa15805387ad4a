"""An error that one mail causes is that mail's own: it gets a result, and the service goes on."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from bridge.api.scanning import AnalysisRequest, BorderMtaData, Decision
from bridge.mail.message import Spool
from bridge.runtime import yaml_file
from bridge.service.analysis.engine import Engine, Findings
from bridge.service.analysis.job import AnalysisJob, StoredMail
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.metrics import ServiceMetrics
from bridge.service.queue import AnalysisQueue
from bridge.service.scanning.records import RecordWriter
from bridge.service.settings import ServiceConfig
from tests.service.service_kit import CONFIG, EICAR, attached, mail, service

HTML = b"<html><a href=http://a.example>x</a> %b</html>\r\n"
LONG_NUMBERS = {
    "decimal": b"&#" + b"9" * 4301,
    "decimal with its end": b"&#" + b"1" * 60_000 + b";",
    "hexadecimal": b"&#x" + b"f" * 60_000 + b";",
    "zeros": b"&#" + b"0" * 60_000 + b"47;",
    "many": (b"&#" + b"7" * 4400 + b";") * 13,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with service(tmp_path_factory.mktemp("errors")) as running:
        yield running


@pytest.mark.parametrize("name", LONG_NUMBERS)
def test_a_character_reference_of_4301_digits_was_answered_with_500(running, name):
    """Python refuses to read such a number; a browser shows one odd character."""
    content = mail(HTML % LONG_NUMBERS[name], Content_Type="text/html")
    answer = running.submit(content)
    assert (answer.status, answer.json["decision"]) == (200, "deliver")


def test_a_virus_beside_a_long_number_is_found(running):
    """The part that broke the service stood in front of the part that mattered."""
    content = attached(EICAR).replace(b"text/plain\r\n\r\nsee", b"text/html\r\n\r\n&#" + b"9" * 4301 + b" see")
    assert "malware:eicar" in running.submit(content).json["tags"]


def test_leading_zeros_do_not_hide_a_link(running):
    """A browser ignores them, so `http:&#000...047;/` is a link."""
    from bridge.service.analysis.content.links import Links

    links = Links()
    links.scan("http:&#" + "0" * 5000 + "47;/evil.example/ &#72;ttp://bad.example/", is_html=True)
    assert links.hosts == {"evil.example", "bad.example"}


class Unreadable(StoredMail):
    """A mail whose bytes cannot be read."""

    __slots__ = ("error",)
    error: BaseException

    def content(self) -> bytes:
        raise self.error


def job(content: bytes = b"Subject: x\r\n\r\nx\r\n", error: BaseException | None = None) -> AnalysisJob:
    stored = StoredMail(Spool(1 << 20)) if error is None else Unreadable(Spool(1 << 20))
    stored.write(content)
    if isinstance(stored, Unreadable) and error is not None:
        stored.error = error
    request = AnalysisRequest(BorderMtaData("a@example.org", ("b@example.net",), "192.0.2.1", "x"))
    return AnalysisJob.new(request, stored)


class Recorder:
    """Takes records, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.added: list[Any] = []

    def add(self, *record: Any) -> None:
        if self.error is not None:
            raise self.error
        self.added.append(record)


class Lists:
    """Lists that match nothing, or fail."""

    loaded = True
    personal_allowing: frozenset[str] = frozenset()

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.index = self

    def match(self, tenant: str | None, traits: Any) -> list[str]:
        if self.error is not None:
            raise self.error
        return []


class Failing:
    """An analyzer that fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def analyze(self, mail: Any) -> Findings:
        raise self.error


@contextmanager
def pipeline(tmp_path, lists: Any = None, records: Any = None, *errors: BaseException):
    config = yaml_file.load(tmp_path / "service.yml", ServiceConfig, CONFIG)
    engines = [Engine(f"e{i}", Failing(error), required=True, timeout_s=5.0) for i, error in enumerate(errors)]
    metrics = ServiceMetrics(engine.name for engine in engines)
    yield Pipeline(config, lists or Lists(), records or Recorder(), engines, metrics)


ERRORS = [ValueError("x"), RecursionError(), MemoryError(), AssertionError(), KeyError("x"), UnicodeError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_while_a_mail_is_inspected_leaves_it_undecided(tmp_path, error):
    """Immediately or in the queue: `failed:mime-crash`, never an exception."""
    with pipeline(tmp_path) as found:
        results = [found.analyze_now(job(error=error)), await found.analyze(job(error=error))]
    for result in results:
        assert result is not None
        assert (result.decision, result.verdict) == (Decision.UNDECIDED, "incomplete")
        assert set(result.tags) == {"failed:mime-crash", "incomplete"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_while_lists_are_matched_leaves_the_mail_undecided(tmp_path, error):
    """Blocked mail must not be delivered because a list could not be read."""
    with pipeline(tmp_path, Lists(error)) as found:
        result = found.analyze_now(job())
    assert result is not None and result.decision is Decision.UNDECIDED and "failed:lists" in result.tags


async def test_a_failing_record_does_not_change_the_result(tmp_path):
    """A record is worth less than a mail."""
    with pipeline(tmp_path, None, Recorder(ValueError("x"))) as found:
        result = found.analyze_now(job())
    assert result is not None and result.decision is Decision.DELIVER


@pytest.mark.parametrize("error", [*ERRORS, SystemExit(1), asyncio.CancelledError(), ExceptionGroup("x", [OSError()])])
async def test_whatever_an_engine_raises_is_its_own_answer(tmp_path, error):
    """Even sys.exit() and a cancellation that nobody asked for."""
    with pipeline(tmp_path, None, None, error) as found:
        queue = AnalysisQueue(found, 1)
        await queue.start()
        try:
            result = await asyncio.wait_for(queue.submit(job()), 30)
        finally:
            await queue.stop()
    assert result.decision is Decision.UNDECIDED and "failed:e0" in result.tags


async def test_an_analysis_that_we_cancel_ends(tmp_path):
    """The client has gone: the engine's cancellation is not taken for an answer."""

    began = asyncio.Event()

    class Waiting(Failing):
        async def analyze(self, mail: Any) -> Findings:
            began.set()
            await asyncio.sleep(60)
            return Findings()

    with pipeline(tmp_path, None, None, ValueError()) as found:
        found._engines[0] = Engine("e0", Waiting(ValueError()), required=True, timeout_s=60.0)
        task = asyncio.create_task(found.analyze(job()))
        await asyncio.wait_for(began.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_infinite_scores_do_not_break_the_result(tmp_path):
    """Two engines whose scores add up to no number."""
    with pipeline(tmp_path) as found:
        from bridge.service.analysis.findings import Inspection
        from bridge.service.analysis.pipeline import _Answer

        for scores in ([1e308, 1e308], [float("inf"), float("-inf")]):
            answers = [_Answer(Findings(frozenset(), score)) for score in scores]
            assert found._conclude(job(), Inspection(), answers).decision is not None


async def test_one_record_that_cannot_be_stored_does_not_stop_the_others():
    """It is lost and counted; before, its batch was tried again for ever, or the writer ended."""
    stored: list[Any] = []
    errors = [IntegrityError("x", {}, Exception()), ValueError("x"), None]

    class Store:
        def writing(self) -> Any:
            error = errors.pop(0)
            if error is not None:
                raise error
            return _Transaction(stored)

    writer = RecordWriter(Store(), 3600.0)  # type: ignore[arg-type]
    result = SimpleNamespace(ggrid="g", created="", completed="", decision="deliver", verdict="", tags=())
    for _ in range(3):
        writer.add(result, None, 0.0, 1)  # type: ignore[arg-type]
        await writer._flush()
    assert (writer.dropped, len(stored)) == (2, 1)


class _Transaction:
    dialect = SimpleNamespace(name="sqlite")

    def __init__(self, stored: list[Any]) -> None:
        self._stored = stored

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: Any, rows: Any = None) -> None:
        if rows is not None:
            self._stored += rows
