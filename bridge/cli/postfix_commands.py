"""The Postfix settings as `postconf` commands: a script for `sh` that can be run repeatedly.

Made from the lines of `postfix_lines`, so that both give the same settings. Milters are added to those that are
already set; an existing smtpd keeps its other -o lines; the services for scanbridge are rewritten each time. The
commands that undo this remove a setting only if it still has the value that we gave it. Nothing is executed here.
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

_REMOVE_MILTER = """\
left=''
for milter in $(postconf -h {name} | tr ',' ' '); do
    [ "$milter" = {value} ] || left="$left${{left:+, }}$milter"
done
if [ -n "$left" ]; then postconf -e "{name} = $left"; else postconf -X {name}; fi"""

_UNDO_HEAD = """\
# Run as root: scanbridge setup postfix --mode MODE --undo | sh -e
# Postfix's default replaces each value that is removed; a value that you had set before must be set again.
# For a Postfix in another directory, first: export MAIL_CONFIG=DIRECTORY"""


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


def undo(lines: Lines) -> str:
    """The commands that remove what `for_lines` sets. Running them again changes nothing."""
    then = "# Then: postfix reload"
    if "content_filter =" in lines.main:
        then += "\n# Queued mail would still go to the filter, so requeue it: postsuper -r ALL"
    return "\n".join([_UNDO_HEAD, *_undo_main(lines.main), *_undo_master(lines.master), then])


def _undo_main(text: str) -> Iterator[str]:
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if name in _MILTERS:
            yield _REMOVE_MILTER.format(name=name, value=shlex.quote(value))
        else:
            yield _if_ours(f"postconf -h {name}", value, f"postconf -X {name}")


def _undo_master(text: str) -> Iterator[str]:
    """Our services are removed as a whole; the operator's own smtpd loses our settings only."""
    service = ""
    for line in text.splitlines():
        if line.strip().startswith("#") or not line.strip():
            continue
        if option := re.fullmatch(r"\s+-o ([a-z_0-9]+)=(.*)", line):
            if service == _FRONT:
                place = f"{service}/{option[1]}"
                yield _if_ours(f"postconf -Ph {place}", option[2], f"postconf -PX {place}")
            continue
        columns = line.split()
        service = "/".join(columns[:2])
        if service != _FRONT:
            yield f"postconf -MX {shlex.quote(service)}"
        elif columns[6] != "-":
            limit = f"{service}/process_limit"
            yield _if_ours(f"postconf -Fh {limit}", columns[6], f"postconf -F {limit}=-")


def _if_ours(shown: str, value: str, command: str) -> str:
    return f'[ "$({shown} 2>/dev/null)" != {shlex.quote(value)} ] || {command}'
