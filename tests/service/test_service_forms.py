"""What clients send in practice: forms, JSON, addresses and heads as different libraries write them."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bridge.mail.message import Spool
from bridge.service.scanning.parameters import clean_address, parse_parameters
from bridge.service.scanning.upload import Upload
from bridge.service.settings import Timings
from tests.service.service_kit import (
    BOUNDARY,
    CONFIG,
    DEADLINE_S,
    GTUBE,
    TOKEN,
    Lists,
    closing,
    mail,
    make_key,
    multipart,
    parameters_json,
    part,
    service,
    wait_for,
)

MIB = 1024 * 1024
PARAMETERS = part("parameters", parameters_json(), "application/json")
MAIL = part("email", mail(GTUBE))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service"), with_key=True) as running:
        yield running


# The form


def form(disposition: bytes, content: bytes, content_type: bytes = b"") -> bytes:
    """A part whose head is given byte by byte."""
    head = b"--%b\r\n%b\r\n" % (BOUNDARY.encode(), disposition)
    return head + (b"Content-Type: %b\r\n" % content_type if content_type else b"") + b"\r\n" + content + b"\r\n"


@pytest.mark.parametrize(
    "body",
    [
        MAIL + PARAMETERS + closing(),
        PARAMETERS + part("email", mail(GTUBE), "message/rfc822", "mail.eml") + closing(),
        PARAMETERS + part("email", mail(GTUBE), "application/octet-stream", "größe 邮件.eml") + closing(),
        PARAMETERS
        + form(b"Content-Disposition: form-data; name=\"email\"; filename*=UTF-8''%e2%82%ac.eml", mail(GTUBE))
        + closing(),
        part("parameters", parameters_json(), "application/json", "parameters.json") + MAIL + closing(),
        part("parameters", parameters_json(), "application/json;charset=UTF-8") + MAIL + closing(),
        part("parameters", parameters_json(), "Application/JSON; charset=us-ascii") + MAIL + closing(),
        PARAMETERS + form(b"content-disposition: form-data; name=email", mail(GTUBE)) + closing(),
        PARAMETERS
        + form(b'CONTENT-DISPOSITION: form-data; filename="a;b\\"c.eml"; name="email"', mail(GTUBE))
        + closing(),
        PARAMETERS
        + form(b'Content-Disposition: form-data; name="email"\r\nContent-Transfer-Encoding: binary', mail(GTUBE))
        + closing(),
        PARAMETERS + part("more", b"x") + part("emails", b"y") + MAIL + closing(),
        PARAMETERS + MAIL + closing().rstrip(),
        PARAMETERS + MAIL + closing() + b"an epilogue\r\n",
        b"\r\n" + PARAMETERS + MAIL + closing(),
        part("parameters", b"\xef\xbb\xbf" + parameters_json(), "application/json") + MAIL + closing(),
        part("parameters", b"\r\n  " + parameters_json() + b"\r\n", "application/json") + MAIL + closing(),
    ],
    ids=[
        *("mail-first", "file", "utf-8-file-name", "encoded-file-name", "parameters-as-file", "charset", "ascii"),
        *("lower-case-fields", "upper-case-fields", "binary", "other-parts", "no-last-crlf", "epilogue"),
        *("empty-line-first", "byte-order-mark", "white-space"),
    ],
)
def test_a_form_may_be_written_in_many_ways(running, body):
    """Order, file names, letter case and the last line end make no difference."""
    answer = running.upload(body)
    assert answer.status == 200, answer.body
    assert answer.json["decision"] == "bounce"


@pytest.mark.parametrize("content_type", ['multipart/form-data; boundary="%s"', "Multipart/Form-Data;BOUNDARY=%s",
                                          "multipart/form-data; charset=utf-8; boundary=%s"])  # fmt: skip
def test_a_boundary_may_be_written_in_many_ways(running, content_type):
    assert running.upload(PARAMETERS + MAIL + closing(), content_type=content_type % BOUNDARY).status == 200


@pytest.mark.parametrize("boundary", ["a b", "a'()+_,-./:=?b", "-" * 60, "x" * 70])
def test_a_boundary_may_have_any_allowed_character(running, boundary):
    body = (PARAMETERS + MAIL + closing()).replace(BOUNDARY.encode(), boundary.encode())
    assert running.upload(body, content_type=f'multipart/form-data; boundary="{boundary}"').status == 200


@pytest.mark.parametrize("encoding", [b"base64", b"quoted-printable", b"BASE64 "])
@pytest.mark.parametrize("name", [b"email", b"parameters"])
def test_an_encoded_part_is_refused(running, name, encoding):
    """A mail in Base64 would be scanned as if it were plain text."""
    head = b'Content-Disposition: form-data; name="%b"\r\nContent-Transfer-Encoding: %b' % (name, encoding)
    answer = running.upload(form(head, b"UmVjZWl2ZWQ6", b"application/json") + MAIL + closing())
    assert (answer.status, answer.json["error"]) == (400, "invalid_multipart")


async def test_only_the_mail_counts_for_the_50_mib():
    """Large parameters and other parts in the form leave the mail its 50 MiB."""
    large = parameters_json(to=tuple(f"{number:050}@example.net" for number in range(15_000)))
    assert 900_000 < len(large) < MIB
    body = part("parameters", large, "application/json") + part("more", b"x" * 900_000)
    body += part("email", mail().ljust(50 * MIB, b"y")) + closing()
    pieces = [body[start : start + MIB] for start in range(0, len(body), MIB)]

    async def receive():
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    upload = Upload(Spool(60 * MIB), parse_parameters)
    try:
        request = await upload.read(receive, f"multipart/form-data; boundary={BOUNDARY}".encode())
        assert len(request.border.envelope_recipients) == 15_000
        assert upload.mail.size == 50 * MIB
    finally:
        upload.close()


def test_a_form_over_52_mib_says_what_counts(running):
    body = PARAMETERS + part("more", b"x" * 3 * MIB) + part("email", mail().ljust(50 * MIB, b"y")) + closing()
    answer = running.upload(body)
    assert (answer.status, answer.json["error"]) == (413, "payload_too_large")
    assert "50 MiB for the e-mail" in answer.json["message"]


def test_a_part_with_millions_of_header_fields_kept_the_service_busy(running):
    """10 MB of them took 22 s: versions of python-multipart that do not limit them were allowed."""
    fields = b"a: b\r\n" * 100
    answer = running.upload(b"--%b\r\n%b\r\nx\r\n" % (BOUNDARY.encode(), fields) + PARAMETERS + MAIL + closing())
    assert (answer.status, answer.json["error"]) == (400, "invalid_multipart")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (parser,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "python-multipart")
    assert not parser.specifier.contains("0.0.26")


# JSON


@pytest.mark.parametrize(
    "text",
    [
        '{"borderMtaData": {"envelopeFrom": "a@b", "envelopeFrom": "c@d", "envelopeRecipients": ["b@c"]}}',
        '{"borderMtaData": {}, "borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": ["b@c"]}}',
    ],
)
def test_a_field_that_occurs_twice_is_refused(running, text):
    """Parsers differ in which of the two they use, and a proxy may have checked the other one."""
    answer = running.upload(multipart(text.encode(), mail()))
    assert (answer.status, answer.json["error"]) == (400, "invalid_parameters")


def test_the_list_api_reads_json_in_the_same_way(running):
    """A byte order mark is skipped; a field that occurs twice, or a request that is cut off, changes nothing."""
    lists = Lists(running)
    assert lists.call("getLists", b"\xef\xbb\xbf{}").status == 200
    twice = b'{"listName": "allowed-senders", "listName": "blocked-senders", "entries": [{"entry": "x@example.org"}]}'
    assert lists.call("addEntries", twice).json["error"] == "invalid_request"
    body = b'{"listName": "blocked-senders", "entries": [{"entry": "cut@example.org"}]}'
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(
            b"POST /api/public/lists/v1/addEntries HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: apikey %b\r\nContent-Length: %d\r\n\r\n%b" % (lists.key.encode(), len(body) + 10, body)
        )
        client.shutdown(socket.SHUT_WR)
        client.recv(1000)
    assert lists.entries("blocked-senders") == []


# remoteAddress


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        (" 192.0.2.1\t\r\n", "192.0.2.1"),
        ("192.0.2.1:25", "192.0.2.1"),
        ("[192.0.2.1]", "192.0.2.1"),
        ("[192.0.2.1]:2525", "192.0.2.1"),
        ("IPv4:192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::FFFF:c000:201", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:25", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:25", "2001:db8::1"),
        ("IPv6:2001:db8::1", "2001:db8::1"),
        ("[IPv6:2001:db8::1]", "2001:db8::1"),
        ("ipv6:[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%25eth0]:25", "fe80::1"),
        *((text, None) for text in ("", " ", "unknown", "Unknown", "localhost", "mx.example.org", "-", "[]", "[")),
        *((text, None) for text in ("[UNAVAILABLE]", "unix:/run/x", "192.0.2", "192.0.2.256", "192.0.2.1.5", "%eth0")),
        *((text, None) for text in ("192.0.2.1, 198.51.100.1", "192.0.2.0/24", "1:2:3", "0.0.0.0", "::", "null", "x")),
        *((text, None) for text in ("[2001:db8::1", "2001:db8::1]", "\udcff", "١٩٢.0.2.1", "192.0.2.1\0")),
    ],
)
def test_an_address_is_cleaned_or_absent(given, address):
    assert clean_address(given) == address


@pytest.mark.parametrize(
    ("given", "matches"),
    [
        *((text, True) for text in ("192.0.2.1", " 192.0.2.1 ", "[192.0.2.1]", "192.0.2.1:25", "::ffff:192.0.2.1")),
        *((text, False) for text in ("", "unknown", "[2001:db8::1]", "IPv6:2001:db8::1", "fe80::1%eth0", None)),
        *((text, False) for text in ("mx.example.org", "x" * 500, "192.0.2.1 x", "[unknown]")),
    ],
)
def test_any_remote_address_is_accepted_and_matched_when_it_is_one(running, given, matches):
    """A mail is scanned whatever its server wrote there; a list of networks sees the address itself."""
    lists = Lists(running)
    lists.add("blocked-networks", "192.0.2.1")
    wait_for(lambda: _is_listed(running, "192.0.2.1"))
    assert _is_listed(running, given) is matches


def _is_listed(running, address) -> bool:
    answer = running.submit(mail(), remoteAddress=address)
    assert answer.status == 200, answer.body
    return "list:blocked-networks" in answer.json["tags"]


# HTTP


def exchange(running, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
        client.sendall(data)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode()


def old_requests(running) -> dict[str, tuple[bytes, int]]:
    """One request of HTTP/1.0 for every path and for the errors, with the status of its answer."""
    form_body, key = PARAMETERS + MAIL + closing(), Lists(running).key
    token = f"Authorization: Bearer {TOKEN}"
    form_type = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"

    def submit(*fields: str, body: bytes = form_body) -> bytes:
        path = "POST /v1/messageQueue/submitEmail HTTP/1.0"
        return head(path, form_type, f"Content-Length: {len(body)}", *fields) + body

    def lists(operation: str, body: bytes) -> bytes:
        path = f"POST /api/public/lists/v1/{operation} HTTP/1.0"
        fields = (f"Authorization: apikey {key}", "Content-Type: application/json", f"Content-Length: {len(body)}")
        return head(path, *fields) + body

    return {
        "submit": (submit(token), 200),
        "submit, keep-alive": (submit(token, "Connection: keep-alive"), 200),
        "submit, expect": (submit(token, "Expect: 100-continue"), 200),
        "submit, no token": (submit(), 401),
        "submit, bad form": (submit(token, body=b"x"), 400),
        "submit, too large": (head("POST /v1/messageQueue/submitEmail HTTP/1.0", token, form_type,
                                   f"Content-Length: {60 * MIB}", "Expect: 100-continue"), 413),
        "status": (head("POST /v1/admin/status HTTP/1.0", token), 200),
        "add": (lists("addEntries", b'{"listName": "allowed-senders", "entries": [{"entry": "o@example.org"}]}'), 200),
        "download": (lists("listEntries", b'{"listName": "allowed-senders"}'), 200),
        "download, no list": (lists("listEntries", b'{"listName": "none"}'), 404),
        "lists": (lists("getLists", b"{}"), 200),
        **{path: (head(f"GET {path} HTTP/1.0"), 200)
           for path in ("/metrics", "/livez", "/readyz", "/openapi.json", "/docs")},
        "no path": (head("GET /nothing HTTP/1.0"), 404),
        "method": (head("GET /v1/admin/status HTTP/1.0"), 405),
        "malformed": (b"GET / HTTP/1.0\r\nno field\r\n\r\n", 400),
        "head too large": (head("GET / HTTP/1.0", "X: " + "y" * 70_000), 431),
    }  # fmt: skip


def test_a_client_of_http_1_0_never_gets_chunks(running):
    """On no path: its answers have a length, or end with the connection."""
    for name, (request, status) in old_requests(running).items():
        if name == "submit, too large":  # its body does not come; the answer does not wait for it
            with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_S) as client:
                client.sendall(request)
                answer = client.recv(65536)
                while not answer.endswith(b"}"):
                    answer += client.recv(65536)
        else:
            answer = exchange(running, request)
        top, _, body = answer.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 %d " % status), (name, top)
        assert b"transfer-encoding" not in top.lower(), name
        assert b"connection: close" in top.lower(), name
        assert body, name
        if name == "download":
            assert [json.loads(line)["entry"] for line in body.splitlines()] == ["o@example.org"]
        if length := re.search(rb"content-length: (\d+)", top.lower()):
            assert int(length[1]) == len(body), name


@pytest.mark.parametrize("field", ["Content-Encoding: gzip", "Transfer-Encoding: gzip, chunked"])
def test_a_compressed_body_is_refused(running, field):
    """It would be scanned as if it were not compressed."""
    framing = [] if field.startswith("Transfer") else ["Content-Length: 4"]
    for path, secret in (
        ("/v1/messageQueue/submitEmail", f"Bearer {TOKEN}"),
        ("/api/public/lists/v1/getLists", f"apikey {Lists(running).key}"),
    ):
        kind = f"multipart/form-data; boundary={BOUNDARY}" if "v1/message" in path else "application/json"
        fields = (f"Authorization: {secret}", f"Content-Type: {kind}", "Connection: close", field, *framing)
        body = b"0\r\n\r\n" if not framing else b"\x1f\x8b\x08\0"
        answer = exchange(running, head(f"POST {path} HTTP/1.1", "Host: x", *fields) + body)
        assert answer.startswith(b"HTTP/1.1 415 ") and b'"encoded_body"' in answer


def test_head_has_the_head_of_get_and_no_body(running):
    for path in ("/livez", "/metrics", "/openapi.json", "/docs"):
        answer = exchange(running, head(f"HEAD {path} HTTP/1.1", "Host: x", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")
    answer = exchange(running, head("HEAD /v1/admin/status HTTP/1.1", "Host: x", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 405 ") and answer.endswith(b"\r\n\r\n")


def test_names_of_header_fields_have_no_case(running):
    request = head("POST /v1/admin/status HTTP/1.1", "host: x", f"AUTHORIZATION: bearer {TOKEN}", "connection: close")
    assert exchange(running, request).startswith(b"HTTP/1.1 200 ")


def test_pipelined_scans_get_their_own_answers_in_order(running):
    """Two mails in one write: the first is spam, the second is not."""

    def submit(content: bytes, last: bool = False) -> bytes:
        body = multipart(parameters_json(), content)
        return head(
            "POST /v1/messageQueue/submitEmail HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}",
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}", f"Content-Length: {len(body)}",
            *(["Connection: close"] if last else []),
        ) + body  # fmt: skip

    answers = exchange(running, submit(mail(GTUBE)) + submit(mail(), last=True))
    assert re.findall(rb'"decision": "(\w+)"', answers) == [b"bounce", b"deliver"]


def test_a_body_for_the_status_is_ignored(running):
    """None is specified; some clients send an empty object."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    assert running.request("POST", "/v1/admin/status", b"{}", headers).json == {"messageQueueStatus": "GREEN"}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("Content-Type: text/plain", 415),
        ("Content-Encoding: identity\r\nContent-Encoding: gzip", 415),
        ("Authorization: apikey other", 401),
    ],
)
def test_of_two_fields_of_one_name_only_the_first_counted(running, more, status):
    """A proxy that uses the last one saw another request than we did."""
    key = make_key(running.config)
    request = (
        f"POST /api/public/lists/v1/getLists HTTP/1.1\r\nHost: x\r\nAuthorization: apikey {key}\r\n"
        f"Content-Type: application/json\r\n{more}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    )
    assert exchange(running, request.encode()).startswith(b"HTTP/1.1 %d " % status)


def test_a_slow_head_is_408(tmp_path):
    """A client that does not finish its request line and header fields is told so and disconnected."""
    with service(tmp_path, CONFIG, timings=Timings(head_s=0.4)) as running:
        answer = exchange(running, b"POST /v1/admin/status HTTP/1.1\r\nHost: x\r\n")
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "head_timeout"
        assert running.status().status == 200


def test_a_client_that_is_told_to_continue_and_does_not_is_408(tmp_path):
    """The slot of a body that never comes is free again, and the client learns why."""
    with service(tmp_path, CONFIG, timings=Timings(upload_idle_s=0.5)) as running:
        request = head(
            "POST /v1/messageQueue/submitEmail HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}",
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}", "Content-Length: 1000", "Expect: 100-continue",
        )  # fmt: skip
        answer = exchange(running, request)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 408 ")
        assert b"connection: close" in answer and b'"upload_timeout"' in answer
