"""pytest plugin: aiosmtpd's own test suite, run against our SMTP class.

One documented choice would otherwise hide everything else: all our replies carry an enhanced
status code, most of aiosmtpd's do not. So the test client's replies compare equal with and
without it. Tests that depend on this are recorded, because without it (`SUITE_RAW=1`) they
fail. With `SUITE_REPORT` set, the outcome is written there as JSON.
"""

import json
import os
import re
import smtplib
import socket
import sys
from dataclasses import replace
from pathlib import Path

import aiosmtpd.controller
import pytest

from bridge.intake.smtp.connection import SmtpConnection
from bridge.intake.smtp.context import SmtpContext

_ENHANCED = re.compile(rb"^[245]\.\d{1,3}\.\d{1,3} ", re.MULTILINE)
_getreply = smtplib.SMTP.getreply
_current = ""
_outcome = {"ran": [], "failed": [], "status_code": []}


class Text(bytes):
    """A reply text that compares equal with and without its enhanced status code."""

    __hash__ = None

    def __eq__(self, other):
        if bytes(self) == other:
            return True
        equal = _ENHANCED.sub(b"", self) == _ENHANCED.sub(b"", other)
        if equal and _current not in _outcome["status_code"]:
            _outcome["status_code"].append(_current)
        return equal


def _getreply_text(self):
    code, text = _getreply(self)
    return code, Text(text)


class Writer:
    """The object whose `close` the suite watches."""

    def __init__(self, transport):
        self.transport = transport

    def close(self):
        self.transport.close()


class Swapped(SmtpConnection):
    """Our connection as aiosmtpd's controller uses it: constructed with a handler and options, for each client.

    A stopped controller cancels all tasks and expects every connection to have one. Ours has none while it waits
    for its client, so here it gets one.
    """

    def __init__(self, handler, **options):
        super().__init__(SmtpContext(handler, **options))

    def __getattr__(self, name):
        """Settings that only the suite reads on a connection."""
        return getattr(self._context.stock, name)

    @property
    def local_part_limit(self):
        return self.session.settings.local_part_limit

    @local_part_limit.setter
    def local_part_limit(self, limit):
        self.session.settings = replace(self.session.settings, local_part_limit=limit)

    def connection_made(self, transport):
        self._writer = Writer(transport)
        self._stand_in = self._context.loop.create_task(self._until_stopped())
        super().connection_made(transport)

    def _close_transport(self):
        self._writer.close()

    async def _until_stopped(self):
        try:
            await self._context.loop.create_future()
        finally:
            self._hang_up()

    def connection_lost(self, error):
        super().connection_lost(error)
        self._stand_in.cancel()


if not os.environ.get("SUITE_RAW"):
    smtplib.SMTP.getreply = _getreply_text
aiosmtpd.controller.SMTP = Swapped


def pytest_collection_modifyitems(items):
    """Gives every run its own port."""
    conftest = sys.modules["aiosmtpd.tests.conftest"]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        conftest.HostPort.__new__.__defaults__ = ("localhost", sock.getsockname()[1])
    conftest.Global.SrvAddr = conftest.HostPort()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    global _current
    _current = item.module.__name__.rpartition(".")[2] + "::" + item.nodeid.partition("::")[2]
    _outcome["ran"].append(_current)
    yield


def pytest_runtest_logreport(report):
    if report.failed and _current not in _outcome["failed"]:
        _outcome["failed"].append(_current)


def pytest_sessionfinish():
    if path := os.environ.get("SUITE_REPORT"):
        Path(path).write_text(json.dumps(_outcome))
