"""Values with units and addresses, parsed and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config.mail_server_profiles import DEFAULT_PROFILE, PROFILES
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.runtime import units, yaml_file
from bridge.runtime.endpoints import Endpoint, NextHop


@pytest.mark.parametrize(
    ("text", "value"),
    [("0B", 0), ("1KiB", 1024), ("50MiB", 52428800), ("2 GiB", 2**31), ("3MB", 3_000_000), ("7GB", 7_000_000_000)],
)
def test_sizes(text: str, value: int) -> None:
    """Binary and decimal units."""
    assert units.parse_size(text) == value


@pytest.mark.parametrize("text", ["5", 5, "", "B", "-1B", "1.5MiB", "1mib", "1 M", "5s", None, True, "1MiB ", "1\nB"])
def test_sizes_without_a_unit_are_refused(text: object) -> None:
    """A bare 50 is ambiguous."""
    with pytest.raises(ValueError, match="a size needs"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"), [("250ms", 0.25), ("90s", 90), ("1.5h", 5400), ("30d", 2592000), ("2 m", 120), ("1.1d", 95040)]
)
def test_durations(text: str, value: float) -> None:
    """From milliseconds to days."""
    assert units.parse_duration(text) == value


@pytest.mark.parametrize("text", ["5", 5, "", "s", "-1s", "1e3s", "1:30", "5 sec", "1w", None, False, ".5s"])
def test_durations_without_a_unit_are_refused(text: object) -> None:
    """A bare 90 is ambiguous."""
    with pytest.raises(ValueError, match="a time needs"):
        units.parse_duration(text)


@pytest.mark.parametrize("text", ["100001d", "99999999999d", "9" * 400 + "d", "2400024h", "8640000001s"])
def test_a_duration_that_no_clock_can_add_is_refused(text: str) -> None:
    """It was accepted, and failed later, when it was subtracted from a date."""
    with pytest.raises(ValueError, match="a time must not be longer than 100000d"):
        units.parse_duration(text)
    assert units.parse_duration("100000d") == 8.64e9


@given(st.integers(0, 2**50))
def test_a_size_reads_back_as_shown(value: int) -> None:
    """`config show` loses nothing."""
    assert units.parse_size(units.show_size(value)) == value


@given(st.integers(0, 10**12))
def test_a_duration_reads_back_as_shown(microseconds: int) -> None:
    """Down to a microsecond."""
    value = round(microseconds / 1e6, 6)
    assert units.parse_duration(units.show_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:25", True),
        ("127.9.9.9:25", True),
        ("localhost:25", True),
        ("[::1]:25", True),
        ("unix:/run/x.sock", True),
        ("0.0.0.0:25", False),
        ("[::]:25", False),
        ("192.0.2.1:25", False),
        ("mail.example.org:25", False),
        ("systemd:smtp", False),
    ],
)
def test_an_address_reads_back_as_shown_and_knows_whether_it_is_local(text: str, local: bool) -> None:
    """Only loopback addresses and unix sockets are local."""
    address = Endpoint.parse(text)
    assert str(address) == text and address.is_local is local


@pytest.mark.parametrize(
    "text",
    ["", "25", "host", "host:", "::1:25", "[::1]", "host:25x", "unix:relative", "systemd:", "a b:1"],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    """The error names the valid forms."""
    with pytest.raises(ValueError, match="an address must be"):
        Endpoint.parse(text)


def test_a_port_that_does_not_exist_is_refused() -> None:
    """The error names the highest port."""
    with pytest.raises(ValueError, match="a port must be a number from 1 to 65535"):
        Endpoint.parse("host:65536")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:25", "smtp://127.0.0.1:25"),
        ("smtp://mail.example:25", "smtp://mail.example:25"),
        ("smtp://mail.example:25/", "smtp://mail.example:25"),
        ("lmtp://[::1]:24", "lmtp://[::1]:24"),
        ("lmtp+unix:/run/lmtp", "lmtp+unix:/run/lmtp"),
        ("smtp+unix:/run/smtp", "smtp+unix:/run/smtp"),
        ("maildir:/var/mail/x", "maildir:/var/mail/x"),
    ],
)
def test_a_next_hop_reads_back_as_shown(text: str, shown: str) -> None:
    """A bare host and port means SMTP."""
    assert str(NextHop.parse(text)) == shown
    assert NextHop.parse(shown) == NextHop.parse(text)


@pytest.mark.parametrize(
    "text", ["", "host", "http://host:25", "maildir:", "maildir:here", "lmtp+unix:x", "smtp://", "unix:/x", "systemd:x"]
)
def test_an_invalid_next_hop_is_refused(text: str) -> None:
    """The error names the valid forms."""
    with pytest.raises(ValueError, match="a next hop must be"):
        NextHop.parse(text)


def test_every_profile_answers_before_its_mail_server_times_out() -> None:
    """Our deadline is below the mail server's own timeout, with time to spare."""
    for name, profile in PROFILES.items():
        assert 0 < profile.deadline_s <= profile.limit_s * 0.9, name
    for protocol, name in DEFAULT_PROFILE.items():
        assert (PROFILES[name].protocol == "milter") == (protocol == "milter")


@pytest.mark.parametrize(("bridges", "shares"), [(1, (80, 60)), (4, (20, 15)), (3, (26, 20)), (100, (1, 1))])
def test_bridges_with_the_same_file_share_the_limits(bridges: int, shares: tuple[int, int]) -> None:
    """All together never exceed them, and each of them admits at least one mail."""
    text = f"""scanner: {{urls: [http://127.0.0.1:1], token_file: t}}
listeners: [{{name: mx, address: "127.0.0.1:10025"}}]
relay: {{next_hop: "127.0.0.1:10026"}}
admission: {{max_in_processing: 80, throttle_threshold: 60, shared_by: {bridges}}}
"""
    settings = wiring.admission_settings(yaml_file.load(Path("bridge.yml"), Config, text))
    assert (settings.max_in_processing, settings.throttle_threshold) == shares
