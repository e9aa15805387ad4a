"""Whatever another program extracts from a malformed mail, our reader extracts too.

The mails come from `grammar.py`: each mutation alone, and random sets of them with fixed seeds; all of them as they
are written, with CRLF as over SMTP, and with LF as in a file. `make fuzz` runs the same comparison with new seeds for
as long as it is told to. A reader that is not installed is skipped with the
reason; `deploy/test-servers.sh` installs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.mime.compare import Extent, check, extent, smaller
from tests.mime.grammar import SLOTS, Case, build, files_in_lines, generate, shrink, singles, with_line_ends
from tests.mime.reader import Found, Missing, Reader
from tests.mime.readers import READERS
from tests.mime.servers import Clamav
from tests.requirements import unavailable

RANDOM_MAILS = 300
# `make test` reads one mail in 30 with each reader; `make test-long` reads all.
SHARE = 30
SHOWN = 3  # findings in one failure, each minimised


@cache
def cases() -> list[Case]:
    written = [*singles(), *files_in_lines(), *(generate(seed) for seed in range(RANDOM_MAILS))]
    return [form for case in written for form in with_line_ends(case)]


def share(reader: Reader) -> list[Case]:
    """Different mails for each reader."""
    return cases()[READERS.index(type(reader)) :: SHARE]


@pytest.fixture(params=READERS, ids=lambda kind: kind.name)
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    """One of the readers, running."""
    try:
        running = request.param()
    except Missing as exc:
        unavailable(str(exc))
    yield running
    running.close()


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["a share", "all"])
def test_a_reader_finds_more_than_ours(reader: Reader, is_long: bool) -> None:
    """A file that another program finds in a mail is found, and therefore scanned, by ours."""
    mails = cases() if is_long else share(reader)
    findings = [finding for case in mails if (finding := check(case, reader)) is not None]
    if findings:
        shown = "\n\n".join(str(smaller(finding, reader)) for finding in findings[:SHOWN])
        pytest.fail(f"{len(findings)} of {len(mails)} mails, {SHOWN} of them minimised:\n{shown}", pytrace=False)


def test_the_wrapper_of_a_reader_works(reader: Reader) -> None:
    """Otherwise the comparison would prove nothing: every reader finds the file in an honest mail."""
    case = build(1, {"payload": "zip", **reader.honest})
    found = reader.read(case.mail)
    whole = Extent(len(case.payload), len(case.payload))
    assert found if isinstance(reader, Clamav) else extent(found, case.payload) == whole
    again = reader.read(case.mail)
    assert sorted(item.content for item in again) == sorted(item.content for item in found)
    nothing = reader.read(b"Subject: x\r\n\r\nnothing\r\n")
    assert extent(nothing, case.payload) == Extent()


def test_the_same_seed_gives_the_same_mail() -> None:
    """A finding can be repeated, and most mutations change something."""
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]
    assert len({generate(seed).mail for seed in range(500)}) == 500
    assert {slot for case in singles() for slot, _ in case.recipe} == set(SLOTS) - {"second-edit"}


def test_a_finding_is_shrunk_to_what_it_needs() -> None:
    """The report shows the mutation that matters and not much else."""
    case = build(7, {"layout": "nested", "param": "comment-before", "eol": "lf", "payload": "text"})

    def fails(tried: Case) -> bool:
        return b"(c) boundary" in tried.mail

    small = shrink(case, fails)
    assert small.mutations == "param=comment-before"
    assert small.mail.count(b"\n") <= 1 and fails(small)


def test_the_extent_is_the_longest_beginning_in_one_object() -> None:
    """Two halves in two objects are not the file; a file after other bytes is another kind of file."""
    payload = bytes(range(1, 201))
    assert extent([Found(payload[:100]), Found(payload[100:])], payload) == Extent(96, 96)
    assert extent([Found(b"x" + payload)], payload) == Extent(200, 0)
    assert extent([Found(payload + b"x"), Found(b"")], payload) == Extent(200, 200)
    assert extent([Found(payload[:47])], payload) == Extent()
