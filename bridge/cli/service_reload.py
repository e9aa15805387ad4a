"""The work of `scanbridge service reload`: signal the service of one configuration, and wait for the result.

The service is the process that listens at the address in its configuration, so several services on one machine are
told apart. A process that does not handle the signal would be ended by it: so the address must show the metrics of
`scanbridge service`, and the process must be Python, not a program that forwards connections to a container. A service
that hangs shows nothing, so it is not signalled: it would not reload, and only a restart helps.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bridge.cli import service_pages
from bridge.cli.hang_up import NotOurs, hang_up, may_be_ours
from bridge.cli.service_pages import Page
from bridge.cli.service_place import load_or_exit
from bridge.cli.terminal import say
from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint
from bridge.service.config_files import Loaded

_POLL_S = 0.1
_METRIC = re.compile(rb"^scanservice_(reload_success|config_time_seconds) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class State:
    succeeded: bool  # the last reload
    since: float  # when the configuration took effect


def reload(path: Path, timeout_s: float) -> NoReturn:
    """Ends the process with its exit code. Errors in the file are reported before anything is signalled."""
    loaded = load_or_exit(path)
    listen = loaded.config.listen
    page = _metrics(loaded)
    before = _state(page)
    if before is None:
        _fail(_why_unknown(loaded, page))
    try:
        hang_up(_process(listen), listen)
    except NotOurs as exc:
        _fail(str(exc))
    except PermissionError:
        _fail("the service runs as another user: run this command as that user or as root")
    except ProcessLookupError:
        _fail("the service has exited in the meantime")
    end, now = time.monotonic() + timeout_s, before
    while time.monotonic() < end:
        page = _metrics(loaded)
        now = _state(page) or now
        if now.since != before.since:
            say("the new configuration is in use")
            sys.exit(0)
        if before.succeeded and not now.succeeded:
            break
        time.sleep(_POLL_S)
    if page is None:
        _fail(f"no result within {timeout_s:g} s: the service no longer answers; see its log, and restart it")
    if now.succeeded:
        _fail(f"no result within {timeout_s:g} s: see the service's log, or wait longer with --timeout")
    _fail("reload failed, keeping the old configuration: the service's log says why")


def _process(listen: Endpoint) -> int:
    """Not its children, which inherit the socket, and not systemd, which may have opened it."""
    found = [pid for pid in port_owner.owners(listen) if may_be_ours(pid)]
    main = [pid for pid in found if port_owner.parent(pid) not in found]
    if len(main) != 1:
        _fail("its process cannot be found: run this command as root or as the service's user, in the same container")
    return main[0]


def _metrics(loaded: Loaded) -> Page | None:
    return service_pages.get(loaded.config.listen, "/metrics", tls=loaded.config.tls is not None)


def _state(page: Page | None) -> State | None:
    found = dict(_METRIC.findall(page.content)) if page is not None else {}
    if len(found) < 2:
        return None
    return State(float(found[b"reload_success"]) == 1, float(found[b"config_time_seconds"]))


def _why_unknown(loaded: Loaded, page: Page | None) -> str:
    listen, key = loaded.config.listen, loaded.at("listen")
    found = port_owner.listener(listen)
    if page is not None and page.status in (401, 403):
        return f"/metrics at {listen} requires a token, so this command cannot see the result: send SIGHUP instead"
    if page is not None:
        return f"{found or 'the program'} at {listen} ({key}) is not `scanbridge service`: nothing was signalled"
    if found:
        within = f"did not answer within {service_pages.TIMEOUT_S:g} s"
        return f"{found} listens on {listen} ({key}), but {within}; check its log, and restart it"
    return f"no `scanbridge service` answers at {listen} ({key}); is it running?"


def _fail(text: str) -> NoReturn:
    say(f"scanbridge service: {text}", err=True)
    sys.exit(1)
