"""The Email Scanning API over real sockets: answers, refusals and limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.api.scanning import AnalysisResult, Decision
from bridge.mail.message import Spool
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import CannotListen
from bridge.service.responses import DRAIN_S, Refused
from bridge.service.scanning.admission import Admission
from bridge.service.scanning.parameters import parse_parameters
from bridge.service.scanning.upload import Upload
from bridge.service.server import ServiceServer
from bridge.service.settings import Timings
from tests.service.service_kit import (
    BOUNDARY,
    CONFIG,
    DEADLINE_S,
    EICAR,
    GTUBE,
    TOKEN,
    attached,
    closing,
    mail,
    multipart,
    parameters_json,
    part,
    service,
    submit_head,
    wait_for,
    zipped,
)

MIB = 1024 * 1024
PARAMETERS = parameters_json()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.parametrize(
    ("content", "decision"),
    [
        (mail(), Decision.DELIVER),
        (b"", Decision.DELIVER),
        (b"\xff\x00 not a mail at all", Decision.DELIVER),
        (mail(GTUBE), Decision.BOUNCE),
        (mail(EICAR), Decision.QUARANTINE),
        (attached(EICAR), Decision.QUARANTINE),
        (attached(zipped(("eicar.com", EICAR)), "a.zip"), Decision.QUARANTINE),
        (attached(zipped(("inner.zip", zipped(("eicar.com", EICAR)))), "a.zip"), Decision.QUARANTINE),
        (mail(b"x" * (3 * MIB) + GTUBE), Decision.BOUNCE),
    ],
    ids=["clean", "empty", "garbage", "gtube", "eicar", "attached", "zip", "zip-in-zip", "large"],
)
def test_a_mail_gets_its_decision(running, content, decision):
    """The test strings produce the three decisions a new user wants to see, wherever in the mail they are."""
    answer = running.submit(content)
    assert answer.status == 200
    assert AnalysisResult.from_json(answer.body).decision is decision


def test_a_result_has_every_documented_field(running):
    """The answer has a unique ggrid, times in UTC, decision, verdict and tags."""
    first, second = running.submit(mail()).json, running.submit(mail()).json
    assert UUID(first["ggrid"]) != UUID(second["ggrid"])
    for name in ("created", "completed"):
        assert first[name].endswith("Z")
        datetime.fromisoformat(first[name])
    assert first["decision"] == "deliver"
    assert first["verdict"] == "clean"
    assert first["tags"] == []


def test_parts_may_arrive_in_either_order(running):
    """The mail may come before its parameters."""
    body = part("email", mail(GTUBE)) + part("parameters", PARAMETERS, "application/json; charset=utf-8") + closing()
    assert running.upload(body).json["decision"] == "bounce"


JSON_PART = part("parameters", PARAMETERS, "application/json")
MAIL_PART = part("email", mail())


def two_names(first: bytes, second: bytes) -> bytes:
    """A part with two Content-Disposition fields: which of its names counts depends on the reader."""
    field = b'Content-Disposition: form-data; name="%b"\r\n'
    return MAIL_PART.replace(field % b"email", field % first + field % second)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (MAIL_PART + closing(), 400, "missing_part"),
        (JSON_PART + closing(), 400, "missing_part"),
        (JSON_PART + JSON_PART + MAIL_PART + closing(), 400, "duplicate_part"),
        (JSON_PART + MAIL_PART + MAIL_PART + closing(), 400, "duplicate_part"),
        (part("parameters", PARAMETERS) + MAIL_PART + closing(), 415, "parameters_not_json"),
        (part("parameters", PARAMETERS, "text/plain") + MAIL_PART + closing(), 415, "parameters_not_json"),
        (part("parameters", b"{", "application/json") + MAIL_PART + closing(), 400, "invalid_parameters"),
        (part("parameters", b"\xff", "application/json") + MAIL_PART + closing(), 400, "invalid_parameters"),
        (part("parameters", b"[" * 100_000, "application/json") + MAIL_PART + closing(), 400, "invalid_parameters"),
        (part("parameters", b" " * 1_100_000, "application/json") + MAIL_PART + closing(), 400, "parameters_too_large"),
        (JSON_PART + MAIL_PART, 400, "invalid_multipart"),
        (b"no multipart", 400, "invalid_multipart"),
        (b"", 400, "invalid_multipart"),
        (two_names(b"more", b"email") + JSON_PART + closing(), 400, "invalid_multipart"),
        (two_names(b"email", b"more") + JSON_PART + closing(), 400, "invalid_multipart"),
        (part("more", b"x") * 20 + JSON_PART + MAIL_PART + closing(), 400, "invalid_multipart"),
    ],
)
def test_a_malformed_upload_is_refused_with_its_own_error(running, body, status, error):
    """Missing, duplicate and mistyped parts each have a stable error."""
    answer = running.upload(body)
    assert (answer.status, answer.json["error"]) == (status, error)
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        {},
        {"borderMtaData": []},
        {"borderMtaData": {"envelopeRecipients": ["b@c"]}},
        {"borderMtaData": {"envelopeFrom": None, "envelopeRecipients": ["b@c"]}},
        {"borderMtaData": {"envelopeFrom": "a@b"}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": []}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": [1]}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": ["b@c"], "remoteAddress": 3221225985}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": "b@c"}},
        {"borderMtaData": {"envelopeFrom": 1, "envelopeRecipients": ["b@c"]}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": ["b@c"], "senderHelo": 1}},
        {"borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": ["b@c"]}, "tenantUid": "x"},
        {"borderMtaData": {"envelopeFrom": float("nan"), "envelopeRecipients": ["b@c"]}},
    ],
)
def test_invalid_parameters_are_refused(running, parameters):
    """Every field is checked against the description of the interface."""
    answer = running.upload(multipart(json.dumps(parameters).encode(), mail()))
    assert (answer.status, answer.json["error"]) == (400, "invalid_parameters")


def test_odd_but_valid_parameters_are_accepted(running):
    """The null sender, IPv6, a lone surrogate and unknown fields do not prevent a scan."""
    raw = (
        b'{"borderMtaData": {"envelopeFrom": "", "envelopeRecipients": ["b@c"], "remoteAddress": "2001:db8::1",'
        b' "senderHelo": "\\udcff<script>", "new": 1}, "tenantUid": "123E4567-e89b-12d3-a456-426614174000"}'
    )
    assert running.upload(multipart(raw, mail())).status == 200


@pytest.mark.parametrize("content_type", ["application/json", "multipart/mixed; boundary=x", "text/plain"])
def test_only_multipart_form_data_is_accepted(running, content_type):
    """Any other content type gets 415."""
    answer = running.upload(multipart(PARAMETERS, mail()), content_type=content_type)
    assert (answer.status, answer.json["error"]) == (415, "not_multipart")


@pytest.mark.parametrize(
    "value",
    [None, "", "Bearer", "Bearer ", f"apikey {TOKEN}", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"],
)
def test_a_wrong_token_is_refused(running, value):
    """No header, another scheme or another token: 401 with a challenge, on both paths."""
    for path in ("/v1/messageQueue/submitEmail", "/v1/admin/status"):
        answer = running.request("POST", path, headers={} if value is None else {"Authorization": value})
        assert (answer.status, answer.json["error"]) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_permissions_limit_a_token(tmp_path):
    """A token for status cannot scan, and a token for scanning cannot get the status."""
    text = CONFIG.replace(
        f"- {{name: test, token: {TOKEN}}}",
        f"- {{name: s, token: s{TOKEN}, permissions: [scan]}}\n"
        f"    - {{name: t, token: t{TOKEN}, permissions: [status]}}",
    )
    with service(tmp_path, text) as running:
        assert running.submit(mail(), token="s" + TOKEN).status == 200
        assert running.submit(mail(), token="t" + TOKEN).json["error"] == "forbidden"
        assert running.status("t" + TOKEN).status == 200
        assert running.status("s" + TOKEN).status == 403


def test_without_rest_api_scans_are_refused(tmp_path):
    """Only guard.scanSources.restApi enables submitEmail."""
    with service(tmp_path, CONFIG.replace("scanSources: {restApi: {}}", "mainWorkerCount: 3")) as running:
        assert running.submit(mail()).json["error"] == "scan_source_disabled"
        assert running.status().json == {"messageQueueStatus": "RED"}


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v1/messageQueue/submitEmail", 405, "method_not_allowed"),
        ("GET", "/nothing", 404, "not_found"),
    ],
)
def test_other_paths_and_methods_answer_error_objects(running, method, path, status, error):
    """Every response other than success is an Error object."""
    answer = running.request(method, path)
    assert (answer.status, answer.json["error"]) == (status, error)


@pytest.mark.parametrize("extra", [-1, 0])
@pytest.mark.long
def test_a_mail_of_exactly_50_mib_passes(running, extra):
    """The limit applies to the mail alone; multipart overhead does not count."""
    assert running.submit(mail(b"x" * 64).ljust(50 * MIB + extra, b"y")).status == 200


@pytest.mark.parametrize("extra", [1, 15 * MIB])
def test_a_client_that_reads_late_gets_413_for_a_mail_over_50_mib(running, extra):
    """A client that sends everything before it reads still receives the 413."""
    answer = running.submit(b"x" * (50 * MIB + extra))
    assert (answer.status, answer.json["error"]) == (413, "payload_too_large")


def test_413_is_sent_before_the_body_arrives(running):
    """With a correct Content-Length the refusal is immediate."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(submit_head(60 * MIB))
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_413_reaches_a_client_that_sends_chunks(running):
    """Without a Content-Length the limit is reached during the upload."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(submit_head(None))
        client.sendall(_chunk(part("email", b"")[:-2]))
        for _ in range(60):
            client.sendall(_chunk(b"x" * MIB))
        client.sendall(_chunk(b"\r\n" + closing()) + b"0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_connection_stayed_open_for_30_s_after_a_complete_request_was_refused(running, is_chunked):
    """The service waited for the end of a body that it had already read."""
    body = part("email", b"x" * 2 * MIB) + b"--nonsense"
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        head = submit_head(None if is_chunked else len(body))
        client.sendall(head[:-2] + b"Connection: close\r\n\r\n")
        client.sendall(_chunk(body) + b"0\r\n\r\n" if is_chunked else body)
        start = time.monotonic()
        assert _read_all(client).startswith(b"HTTP/1.1 400 ")
        assert time.monotonic() - start < DRAIN_S / 2


@pytest.mark.parametrize(
    "extra",
    [b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 5\r\nContent-Length: 6\r\n"],
)
def test_conflicting_lengths_are_refused(running, extra):
    """A request whose length is ambiguous is not read at all."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(b"POST /v1/admin/status HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n0\r\n\r\n")
        head, _, body = _read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"] == "bad_request"


@pytest.mark.parametrize("path", [b"messageQueue/submitEmail", b"admin/status", b"lists/getLists"])
@pytest.mark.parametrize("length", [b"0" * 4400, b"0" * 4400 + b"5"])
def test_a_length_that_python_refuses_to_read_was_an_error_of_ours(running, path, length):
    """Without a token, each such request left a traceback in the log."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(b"POST /v1/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\nhello" % (path, length))
        assert client.recv(100).split(b"\r\n")[0] in (b"HTTP/1.1 401 Unauthorized", b"HTTP/1.1 404 Not Found")


def test_an_endless_request_head_is_refused(running):
    """A head over 64 KiB gets 431, so memory stays flat."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nX: " + b"a" * 70_000)
        assert _read_all(client).startswith(b"HTTP/1.1 431 ")


def test_at_the_limit_requests_are_refused_and_status_is_red(tmp_path):
    """With every slot taken, the next request gets 503 with Retry-After, and the status is RED."""
    with service(tmp_path, CONFIG.replace("{restApi: {}}", "{restApi: {}}, mainWorkerCount: 2")) as running:
        held = [_hold_slot(running.port) for _ in range(2)]
        wait_for(lambda: running.status().json == {"messageQueueStatus": "RED"})
        answer = running.submit(mail())
        assert (answer.status, answer.json["error"]) == (503, "saturated")
        assert int(answer.headers["Retry-After"]) >= 1
        for client in held:
            client.close()
        wait_for(lambda: running.status().json == {"messageQueueStatus": "GREEN"})
        assert running.submit(mail()).status == 200


def test_from_the_threshold_status_is_yellow(tmp_path):
    """Between threshold and limit the status is YELLOW."""
    text = CONFIG.replace("{restApi: {}}", "{restApi: {}}, mainWorkerCount: 4, guardRequestThrottleThreshold: 1")
    with service(tmp_path, text) as running, _hold_slot(running.port):
        wait_for(lambda: running.status().json != {"messageQueueStatus": "GREEN"})
        assert running.status().json == {"messageQueueStatus": "YELLOW"}


@pytest.mark.parametrize(
    ("limit", "threshold", "count", "delay"),
    [(20, 20, 19, 0.0), (20, 10, 9, 0.0), (20, 10, 10, 0.5), (20, 10, 14, 2.5), (20, 10, 19, 5.0)],
)
def test_the_throttle_is_linear(limit, threshold, count, delay):
    """The delay grows linearly from the threshold to the limit."""
    assert Timings().throttle_max_s == 5.0
    assert Admission(limit, threshold, Timings().throttle_max_s).delay(count) == pytest.approx(delay)


def test_admission_refuses_only_at_the_limit():
    """The last slot can be taken, the next request is refused, and a returned slot can be taken again."""
    admission = Admission(1, 1, Timings().throttle_max_s)
    assert admission.enter() == 0.0
    with pytest.raises(Refused):
        admission.enter()
    admission.leave()
    assert admission.enter() == 0.0


def test_many_scans_at_once_each_get_their_own_answer(running):
    """No mail gets the answer of another."""

    def gets_its_own_answer(i: int) -> bool:
        answer = running.submit(mail(GTUBE if i % 2 else b"x"))
        return answer.status == 503 or answer.json["decision"] == ("bounce" if i % 2 else "deliver")

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(gets_its_own_answer, range(100)))


def test_a_taken_port_is_an_exception(running):
    """Starting on a port in use raises a readable error and does not end the process."""
    config = running.config.model_copy(update={"listen": Endpoint("127.0.0.1", running.port)})
    with pytest.raises(CannotListen, match=f"127.0.0.1:{running.port}"):
        running.call(ServiceServer().start(config))


def test_stop_finishes_running_requests(tmp_path):
    """A scan whose upload is in progress when the service stops still gets its answer."""
    with (
        service(tmp_path) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client,
    ):
        body = multipart(PARAMETERS, mail())
        client.sendall(submit_head(len(body)) + body[:-10])
        wait_for(lambda: running.server._http._server.server_state.tasks)
        stopping = threading.Thread(target=lambda: running.call(running.server.stop(5)))
        stopping.start()
        client.sendall(body[-10:])
        assert b'"deliver"' in _read_all(client)
        stopping.join(DEADLINE_S)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _hold_slot(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    client.sendall(submit_head(1000))
    return client


def _read_all(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def test_a_client_that_waits_for_100_continue_gets_only_413(running):
    """curl asks before it sends a large body; a refusal is then the only response."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(submit_head(60 * MIB).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        answer = _read_all(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer


def test_a_client_that_waits_for_100_continue_gets_it(running):
    """Without a refusal the client gets 100, sends its mail, and gets the result."""
    body = multipart(PARAMETERS, mail())
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(submit_head(len(body)).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


@given(st.lists(st.integers(1, 400), max_size=20))
@settings(max_examples=40, deadline=None)
async def test_an_upload_reads_the_same_however_it_is_split(cuts):
    """Chunks may end anywhere, even within a delimiter or a header."""
    body, pieces, spool = multipart(PARAMETERS, mail(b"x" * 300)), [], Spool(MIB)
    for cut in cuts:
        pieces.append(body[:cut])
        body = body[cut:]
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces if piece]
    events.append({"type": "http.request", "body": body, "more_body": False})

    async def receive():
        return events.pop(0)

    upload = Upload(spool, parse_parameters)
    request = await upload.read(receive, f"multipart/form-data; boundary={BOUNDARY}".encode())
    assert request.border.envelope_from == "a@example.org"
    assert upload.mail.content() == mail(b"x" * 300)
    upload.close()
    assert spool.in_use == 0


def test_a_path_with_a_trailing_slash_is_not_found(running):
    """There is no redirect."""
    assert running.request("POST", "/v1/admin/status/").status == 404


def test_from_the_threshold_requests_are_delayed(tmp_path):
    """A busy service slows its clients down before it refuses them."""
    text = CONFIG.replace("{restApi: {}}", "{restApi: {}}, mainWorkerCount: 3, guardRequestThrottleThreshold: 1")
    with service(tmp_path, text, timings=Timings(throttle_max_s=0.4)) as running, _hold_slot(running.port):
        wait_for(lambda: running.status().json == {"messageQueueStatus": "YELLOW"})
        start = time.monotonic()
        assert running.submit(mail()).status == 200
        assert time.monotonic() - start >= 0.2
