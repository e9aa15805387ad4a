"""The libraries of the `console` extra, which the console, the digests and the pages for users need.

To be asked before anything is imported that imports them: otherwise, the operator sees a traceback instead of the
command that installs them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from bridge.cli.config_option import EXIT_CONFIG
from bridge.cli.terminal import say

_NAMES = ("argon2", "authlib", "jinja2", "nh3", "pyzipper")


def what_is_missing() -> str:
    """A sentence without its subject, or empty."""
    missing = [name for name in _NAMES if find_spec(name) is None]
    return f"additional libraries ({', '.join(missing)}): pip install 'scanbridge[console]'" if missing else ""


def need_libraries(what: str) -> None:
    """Exits with a message if one is missing. `what` needs them, such as `the console needs`."""
    if missing := what_is_missing():
        say(f"{what} {missing}", err=True)
        sys.exit(EXIT_CONFIG)
