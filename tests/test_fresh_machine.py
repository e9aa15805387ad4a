"""The tests do not depend on how and where they are started. `make test-fresh` runs them all on empty machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import proxy_bypass

from tests.requirements import need

ROOT = Path(__file__).parents[1]
HANDLER = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
HOSTILE = {
    "http_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "SCANBRIDGE_CONFIG": "/nonexistent",
    "XDG_STATE_HOME": "/nonexistent",
    "STATE_DIRECTORY": "/nonexistent",
    "JOURNAL_STREAM": "8:1",
    "COLUMNS": "40",
    "FORCE_COLOR": "1",
}


def test_a_program_that_a_test_starts_is_on_its_own() -> None:
    """It can be interrupted, it reaches our servers without a proxy, and no variable tells it what to do."""
    done = subprocess.run([sys.executable, "-c", HANDLER], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n"
    assert proxy_bypass("127.0.0.1") and proxy_bypass("localhost")
    assert not {name for name in HOSTILE if "proxy" not in name.lower()} & set(os.environ)


def test_a_run_in_the_background_or_behind_a_proxy_failed() -> None:
    """`make test &` ignored SIGINT in every program; a proxy, or the variables of a service, changed what they did."""
    inner = f"tests/{Path(__file__).name}::{test_a_program_that_a_test_starts_is_on_its_own.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", inner],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | HOSTILE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_root_without_namespaces_failed_instead_of_skipping() -> None:
    """In most containers, root has `unshare` but must not mount."""
    need("setpriv", root=True)
    program = "from tests.requirements import need; need('unshare', root=True)"
    confined = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run([*confined, sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "namespaces are not available here" in done.stderr.splitlines()[-1]
