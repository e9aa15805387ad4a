"""Mail that was saved to a file gets the line ends of mail."""

from __future__ import annotations

import io
import itertools
import re
from contextlib import closing

from bridge.scanner import stored_mail
from tests.processor_time import cpu_s


def as_mail(content: bytes) -> bytes:
    with closing(stored_mail.as_mail(io.BytesIO(content))) as mail:
        return b"".join(mail.chunks())


def test_a_file_of_empty_lines_is_converted_in_no_time() -> None:
    """Each line end took a third of a microsecond, so 50 MiB of them stopped the console for 20 seconds."""
    content = b"\n" * 2_000_000
    slow = cpu_s(lambda: re.sub(rb"(?<!\r)\n", b"\r\n", content), 1)
    assert as_mail(content) == b"\r\n" * 2_000_000
    assert cpu_s(lambda: as_mail(content)) < slow / 3


def test_only_bare_line_feeds_are_converted() -> None:
    """Also where a block ends: a CRLF there must not become CR CR LF."""
    for letters in itertools.product((b"\r", b"\n", b"a"), repeat=6):
        text = b"".join(letters)
        for before in (0, stored_mail._BLOCK - 3):
            content = b"x" * before + text
            assert as_mail(content) == re.sub(rb"(?<!\r)\n", b"\r\n", content), text
