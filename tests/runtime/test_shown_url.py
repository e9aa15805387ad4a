"""URLs of the configuration, as logs and commands show them."""

from __future__ import annotations

import pytest

from bridge.runtime.shown_url import shown_database, shown_url, without_queries
from tests.processor_time import is_linear


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
        ("https://user:sesame@host:1/v1?token=sesame#sesame", "https://…@host:1/v1?…"),
        ("https://sesame@host/", "https://…@host/"),
        ("https://a@sesame@[::1]:1", "https://…@[::1]:1"),
        ("http://[sesame", "…"),
    ],
)
def test_user_password_and_parameters_are_hidden(url: str, shown: str) -> None:
    """Each of them may be a secret, and says nothing about where something is sent."""
    assert shown_url(url) == shown


def test_a_path_may_be_a_secret() -> None:
    """Some webhooks are known by their path alone."""
    assert shown_url("https://hooks.example/services/T0/sesame", has_secret_path=True) == "https://hooks.example/…"
    assert shown_url("https://hooks.example/", has_secret_path=True) == "https://hooks.example/"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bridge@db/mail?sslmode=verify-full", "postgresql://bridge@db/mail?sslmode=verify-full"),
        ("postgresql://db/mail?sslpassword=sesame&sslmode=x", "postgresql://db/mail?sslpassword=…&sslmode=x"),
        ("postgresql://db/mail?sslmode=x&SSLPassword=sesame", "postgresql://db/mail?sslmode=x&SSLPassword=…"),
        ("sqlite:///state.sqlite", "sqlite:///state.sqlite"),
    ],
)
def test_the_password_of_a_key_is_hidden(url: str, shown: str) -> None:
    """A password of the connection is refused in this URL, but not the one of a client's key."""
    assert shown_database(url) == shown


def test_parameters_in_a_message_are_hidden() -> None:
    """A library's message about a URL keeps its words; only what follows the path is removed."""
    text = "Max retries exceeded with url: /v1/traces?token=sesame (Caused by ...): really?"
    assert without_queries(text) == "Max retries exceeded with url: /v1/traces?... (Caused by ...): really?"


def test_many_slashes_took_seconds() -> None:
    """The message may contain what a collector of traces says."""
    assert is_linear(without_queries, "/" * 20_000, "/" * 80_000)
