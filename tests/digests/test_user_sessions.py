"""Sessions and codes of users, without a process."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from bridge.console.tokens import new_token
from bridge.digests.database import DigestStore
from bridge.runtime.database import Database
from bridge.user_pages.sessions import UserSessions
from bridge.user_pages.sign_in_codes import SignInCodes


def test_a_clock_that_was_ahead_keeps_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and codes of next year lasted until then."""
    with closing(DigestStore(Database.file(tmp_path / "digests.sqlite"))) as store:
        sessions, codes, browser, right = UserSessions(store, 60, 600), SignInCodes(store), new_token(), time.time
        for ahead_s, lasts in ((365 * 86_400, False), (60, True)):
            with monkeypatch.context() as ahead:
                ahead.setattr(time, "time", lambda ahead_s=ahead_s: right() + ahead_s)
                token, code = sessions.begin("jane@a.example"), codes.make("jane@a.example", browser)
            assert (sessions.find(token) is not None) is lasts
            assert codes.use("jane@a.example", browser, code) is lasts


def test_a_link_that_is_used_again_and_again_made_sessions_without_end(tmp_path: Path) -> None:
    """The oldest ends; those of other people do not."""
    with closing(DigestStore(Database.file(tmp_path / "digests.sqlite"))) as store:
        sessions = UserSessions(store, 60, 600)
        other = sessions.begin("joe@a.example")
        tokens = [sessions.begin("jane@a.example") for _ in range(55)]
        last = [token for token in tokens if sessions.find(token)]
        assert last == tokens[5:] and sessions.find(other)
