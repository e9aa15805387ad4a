"""The Postfix settings as `postconf` commands: a script for `sh` that can be run repeatedly.

Made from the lines of `postfix_lines`, so that both give the same settings. Milters are added to those that are
already set; an existing smtpd keeps its other -o lines; the services for scanbridge are rewritten each time. Nothing
is executed here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from bridge.cli.postfix_lines import Lines

_MILTERS = ("smtpd_milters", "non_smtpd_milters")
_FRONT = "smtp/inet"  # the operator's own smtpd: only the necessary settings are changed

_ADD_MILTER = """\
case " $(postconf -hx {name} | tr ',' ' ') " in
*" "{value}" "*) ;;
*) postconf -e "{name} = $(postconf -h {name}) "{value} ;;
esac"""


def for_lines(lines: Lines, next_step: str) -> str:
    """One command per setting, with the comments of the lines."""
    head = [
        "# Run as root: scanbridge setup postfix --mode MODE --commands | sh -e",
        "# For a Postfix in another directory, first: export MAIL_CONFIG=DIRECTORY",
    ]
    return "\n".join([*head, *_main(lines.main), *_master(lines.master), next_step])


def _main(text: str) -> Iterator[str]:
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if line.startswith("#"):
            yield line
        elif name in _MILTERS:
            yield _ADD_MILTER.format(name=name, value=shlex.quote(value))
        elif name:
            yield f"postconf -e {shlex.quote(f'{name} = {value}')}"


def _master(text: str) -> Iterator[str]:
    """A service begins in the first column; its -o lines, and comments among them, are indented."""
    service = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            if "Replaces the line" not in stripped:  # here, the smtpd keeps its line
                yield stripped
        elif option := re.fullmatch(r"\s+-o ([a-z_0-9]+)=(.*)", line):
            if option[2].startswith("unix:"):  # a chrooted smtpd does not find the socket
                yield f"postconf -F {service}/chroot=n"
            yield f"postconf -P {shlex.quote(f'{service}/{option[1]}={option[2]}')}"
        elif stripped:
            columns = stripped.split()
            service = "/".join(columns[:2])
            if service != _FRONT:
                yield f"postconf -M {shlex.quote(f'{service}={stripped}')}"
            elif columns[6] != "-":
                yield f"postconf -F {shlex.quote(f'{service}/process_limit={columns[6]}')}"
