"""One mail through every log, as docs/reference/log.md describes.

Postfix in front, the bridge, the service, Postfix behind: each logs the mail with an id that the next one
logs too.
"""

from __future__ import annotations

import re

import pytest

from tests.chain import send, until

GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X\r\n"


def mail(marker: str, body: bytes = b"Hello\r\n") -> bytes:
    fields = (
        f"From: a@example.org\r\nTo: b@example.net\r\nSubject: {marker}\r\nMessage-ID: <{marker}@example.org>\r\n\r\n"
    )
    return fields.encode() + body


def fields_of(line: str) -> dict[str, str]:
    """The fields of one of our log lines."""
    return {key: value.strip('"') for key, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', line)}


def ours(installed, marker: str) -> dict[str, str]:
    """The only line about the mail with this Message-ID."""
    installed.bridge.logged(rf"(?m)^id=.* message_id=<{marker}@example\.org> .*$")
    lines = re.findall(rf"(?m)^id=.* message_id=<{marker}@example\.org> .*$", installed.bridge.log())
    assert len(lines) == 1, lines
    return fields_of(lines[0])


def seen_by_the_service(installed, line: dict[str, str]) -> None:
    """The service's own line has the ggrid, and the same decision."""
    found = installed.service.logged(rf"(?m)^.*ggrid={line['ggrid']}.*$")[0]
    assert f"decision={line['decision']}" in found


def test_after_the_queue_both_queue_ids_are_in_our_line(installed, ports, postfix, destination, marker):
    """content_filter: XFORWARD brings the queue id of the Postfix in front, the reply that of the Postfix behind."""
    reply = send(ports.queue_front, mail(marker))
    front = re.fullmatch(r"250 2\.0\.0 Ok: queued as (\w+)", reply)[1]
    arrived = destination.arrived(marker).content.decode()
    line = ours(installed, marker)
    assert line["ident"] == front and line["listener"] == "queue"
    postfix.logged(rf"cleanup\[\d+\]: {front}: message-id=<{marker}@example\.org>")
    postfix.logged(rf"smtp\[\d+\]: {front}: to=.* status=sent \(250 2\.0\.0 Ok: queued as {line['next_id']}\)")
    postfix.logged(rf"smtpd\[\d+\]: {line['next_id']}: client=.* orig_queue_id={front}")
    postfix.logged(rf"cleanup\[\d+\]: {line['next_id']}: message-id=<{marker}@example\.org>")
    postfix.logged(rf"smtp\[\d+\]: {line['next_id']}: to=.* status=sent")
    seen_by_the_service(installed, line)
    assert f"X-Scan-Id: {line['id']}\r\n" in arrived and f"X-Scan-Ggrid: {line['ggrid']}\r\n" in arrived


def test_before_the_queue_the_next_queue_id_is_in_all_three(installed, ports, postfix, destination, marker):
    """Proxy filter: the client receives the queue id of the Postfix behind; there is none in front."""
    reply = send(ports.proxy_front, mail(marker))
    destination.arrived(marker)
    line = ours(installed, marker)
    assert reply == f"250 2.0.0 Ok: queued as {line['next_id']}"
    postfix.logged(rf"proxy-accept: END-OF-MESSAGE: 250 2\.0\.0 Ok: queued as {line['next_id']}")
    postfix.logged(rf"cleanup\[\d+\]: {line['next_id']}: message-id=<{marker}@example\.org>")
    seen_by_the_service(installed, line)


def test_a_refusal_names_our_id_and_the_ggrid(installed, ports, postfix, marker):
    """A sender can quote the reply, which leads to our log line and to the service's."""
    reply = send(ports.proxy_front, mail(marker, GTUBE))
    line = ours(installed, marker)
    assert reply.startswith("550 5.7.1 ") and line["id"] in reply and line["ggrid"] in reply
    postfix.logged(rf"proxy-reject: END-OF-MESSAGE: 550 5\.7\.1 .*{line['id']}")
    seen_by_the_service(installed, line)


@pytest.mark.parametrize("body", [b"Hello\r\n", GTUBE], ids=["delivered", "refused"])
def test_through_milter_postfix_queue_id_is_in_our_line(installed, ports, postfix, destination, marker, body):
    """The macro `i` brings it; when Postfix rejects a mail for us, its log has our id."""
    reply = send(ports.milter_front, mail(marker, body))
    line = ours(installed, marker)
    queue_id = line["ident"]
    postfix.logged(rf"cleanup\[\d+\]: {queue_id}: message-id=<{marker}@example\.org>")
    seen_by_the_service(installed, line)
    if body == GTUBE:
        postfix.logged(rf"{queue_id}: milter-reject: END-OF-MESSAGE .*{line['id']}")
    else:
        assert reply == f"250 2.0.0 Ok: queued as {queue_id}"
        assert f"X-Scan-Id: {line['id']}\r\n" in destination.arrived(marker).content.decode()
        until(lambda: not postfix.queue(), "Postfix's queue to be empty")
