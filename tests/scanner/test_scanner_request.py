"""What the service receives: the request exactly as the API requires."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from python_multipart.multipart import MultipartParser

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Host, ScannerSettings
from bridge.scanner.host import configured
from tests.scanner.fault_server import MAIL, REQUEST, TOKEN, Request, faults, scanner_of, submit

TENANT = "123e4567-e89b-12d3-a456-426614174000"


def parts_of(request: Request) -> dict[str, tuple[dict[str, str], bytes]]:
    """Name -> header fields and content of each part, read by python-multipart."""
    kind, _, boundary = request.fields["content-type"].partition("; boundary=")
    assert kind == "multipart/form-data"
    parts: list[dict[str, Any]] = []
    name = bytearray()
    value = bytearray()

    def on_part_begin() -> None:
        parts.append({"fields": {}, "data": bytearray()})

    def on_header_end() -> None:
        parts[-1]["fields"][name.decode().lower()] = value.decode()
        name.clear()
        value.clear()

    parser = MultipartParser(
        boundary.encode(),
        {
            "on_part_begin": on_part_begin,
            "on_part_data": lambda data, start, end: parts[-1]["data"].extend(data[start:end]),
            "on_header_field": lambda data, start, end: name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: value.extend(data[start:end]),
            "on_header_end": on_header_end,
        },
    )
    parser.write(request.body)
    parser.finalize()
    named = {}
    for part in parts:
        disposition = part["fields"]["content-disposition"]
        named[disposition.split('name="', 1)[1].split('"', 1)[0]] = (part["fields"], bytes(part["data"]))
    assert len(named) == len(parts)
    return named


async def sent(content: bytes = MAIL, request: AnalysisRequest = REQUEST, **options: Any) -> Request:
    """What arrives at the server for one mail."""
    async with faults() as server, scanner_of(server) as scanner:
        await submit(scanner, content, request=request, **options)
        return server.requests[0]


async def test_request_has_two_parts_of_the_asked_types() -> None:
    """`parameters` is application/json, `email` is the raw mail."""
    request = await sent()
    assert request.line == "POST /v1/messageQueue/submitEmail HTTP/1.1"
    assert request.fields["authorization"] == f"Bearer {TOKEN}"
    parts = parts_of(request)
    assert list(parts) == ["parameters", "email"]
    fields, parameters = parts["parameters"]
    assert fields["content-type"] == "application/json"
    assert json.loads(parameters) == {
        "borderMtaData": {
            "envelopeFrom": "a@example.org",
            "envelopeRecipients": ["b@example.org"],
            "remoteAddress": "192.0.2.1",
            "senderHelo": "client.example",
        }
    }
    assert parts["email"][1] == MAIL


async def test_unknown_facts_are_left_out_and_the_tenant_is_named() -> None:
    """Unknown values are neither guessed nor sent as null."""
    request = AnalysisRequest(BorderMtaData("", ("b@example.org", "c@example.org")), TENANT)
    parameters = json.loads(parts_of(await sent(request=request))["parameters"][1])
    assert parameters == {
        "borderMtaData": {"envelopeFrom": "", "envelopeRecipients": ["b@example.org", "c@example.org"]},
        "tenantUid": TENANT,
    }


@pytest.mark.parametrize("size", [0, 1, 65_000, 300_000, 3_000_000])
@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["file", "memory"])
async def test_content_length_is_right_wherever_the_mail_lies(size: int, memory: int) -> None:
    """The mail arrives byte for byte, from memory and from a file, whatever its size."""
    content = bytes(range(256)) * (size // 256 + 1)
    request = await sent(content[:size], memory_per_mail=memory)
    assert int(request.fields["content-length"]) == len(request.body)
    assert parts_of(request)["email"][1] == content[:size]


@pytest.mark.parametrize("line", [b"--{}", b"--{}--", b"\r\n--{}--\r\n"])
async def test_a_boundary_in_the_mail_does_no_harm(line: bytes) -> None:
    """A sender who knows the boundary of an earlier mail cannot end the next one with it."""
    known = (await sent()).fields["content-type"].partition("boundary=")[2].encode()
    content = MAIL + line.replace(b"{}", known) + b'\r\nContent-Disposition: form-data; name="parameters"\r\n\r\n{}\r\n'
    parts = parts_of(await sent(content))
    assert parts["email"][1] == content
    assert json.loads(parts["parameters"][1])["borderMtaData"]["envelopeFrom"] == "a@example.org"


@cache
def _host() -> Host:
    return Host(configured("http://127.0.0.1:9"), ScannerSettings(("http://127.0.0.1:9",), "token"))


@given(st.binary(max_size=200).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(max_size=50))
@example("\udcff\udcfe")
@example("\U0001f600")
@settings(max_examples=200, deadline=None)
def test_parameters_are_strict_utf8_json_for_any_helo(helo: str) -> None:
    """A HELO of any bytes, undecodable ones as lone surrogates, never breaks the JSON."""
    from bridge.scanner.requests import Submission

    request = AnalysisRequest(BorderMtaData("a@b", ("c@d",), None, helo))
    head = next(iter(Submission(request, Message(Spool(0)), b"").to(_host())))
    body = head.split(b"application/json\r\n\r\n", 1)[1].split(b"\r\n--", 1)[0]
    told = json.loads(body.decode("utf-8", "strict"))["borderMtaData"]["senderHelo"]
    told.encode("utf-8", "strict")  # a lone surrogate, also as an escape, is refused by strict readers
    assert told == helo.encode("utf-8", "replace").decode()


async def test_base_url_may_have_a_path() -> None:
    """A service behind a path prefix can be used."""
    async with faults() as server, scanner_of(server.url + "/scan") as scanner:
        await submit(scanner)
        assert server.requests[0].line == "POST /scan/v1/messageQueue/submitEmail HTTP/1.1"


async def test_environment_proxies_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mail and its token go to the scanner, whatever HTTP_PROXY says."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await sent()).line.startswith("POST /v1/")


def test_settings_do_not_show_the_token() -> None:
    """A traceback or debug line with the settings contains no secret."""
    from bridge.scanner.client import ScannerSettings

    assert TOKEN not in repr(ScannerSettings(("http://127.0.0.1:1",), TOKEN))
