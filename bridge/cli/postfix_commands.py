"""The Postfix settings as `postconf` commands: a script for `sh` that can be run repeatedly.

Made from the lines of `postfix_lines`, so that both give the same settings. Milters are added to those that are
already set; an existing smtpd keeps its other -o lines; the services for scanbridge are rewritten each time. The
previous values are recorded (`postfix_script`), and the commands that undo this restore them. Nothing is executed here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from bridge.cli.postfix_lines import FRONT, MAILBOXES, Lines
from bridge.cli.postfix_script import functions

_MILTERS = ("smtpd_milters", "non_smtpd_milters")
_OPTION = re.compile(r"\s+-o ([a-z_0-9]+)=(.*)")

_ADD_MILTER = """\
case " $(postconf -hx {name} | tr ',' ' ') " in
*" "{value}" "*) ;;
*) postconf -e "{name} = $(postconf -h {name}) "{value} ;;
esac"""

_REMOVE_MILTER = """\
now=$(postconf -h {name})
left=$(printf '%s\\n' "$now" | sed -E -e {pattern} -e 's/^[ ,]+//')
if [ "$left" != "$now" ]; then
    if [ -n "$left" ]; then postconf -e "{name} = $left"; else postconf -X {name}; fi
fi"""

_SIZE = """\
# If your own message_size_limit is smaller, it is kept; a larger one, or 0 (no limit), is replaced.
limit main message_size_limit {size}
# Postfix does not deliver to a mailbox whose size limit is below message_size_limit, so such a limit is removed.
no_mailbox_limit mailbox_size_limit
no_mailbox_limit virtual_mailbox_limit"""

_FIND_FRONT = """\
if [ -z "$(postconf -M {service} 2>/dev/null | awk '$8 == "smtpd"')" ]; then
    say "Postfix has no smtpd service {service}; choose one with --service NAME:" \\
        $(postconf -M | awk '$8 == "smtpd" {{ print $1 "/" $2 }}')
    exit 78
fi"""

_REMOVE_FILTER = """\
for place in $(postconf -P | sed -nE {pattern}); do
    postconf -PX "$place"
done"""

_IF_UNUSED = """\
if {{ postconf -P; postconf content_filter smtpd_proxy_filter; }} | grep -Eq {pattern}; then
    say "keeping the service for scanned mail: a filter still uses it (see postconf -P; postconf smtpd_proxy_filter)"
    {others}
else
    restore_all 'main|option|field' ''
{removals}
    for mode in proxy content-filter; do restore_all service ''; done
fi"""

_COMMANDS_HEAD = """\
# Run as root: scanbridge setup postfix --mode MODE --commands | sh -e
# For a Postfix in another directory, first: export MAIL_CONFIG=DIRECTORY
# Each value that is replaced is reported on standard error and recorded in a file next to main.cf, for --undo."""

_UNDO_HEAD = """\
# Run as root: scanbridge setup postfix --mode MODE --undo | sh -e
# Restores what was set before --commands changed it. Settings that you have changed since, or made by hand, are kept.
# For a Postfix in another directory, first: export MAIL_CONFIG=DIRECTORY"""


def for_lines(lines: Lines, mode: str, next_step: str, service: str = FRONT) -> str:
    """One command per setting, with the comments of the lines."""
    parts = [_COMMANDS_HEAD, functions(mode=mode, is_undo=False)]
    if lines.master:
        parts.append(_FIND_FRONT.format(service=shlex.quote(service)))
        parts += [f"own_service {_mark(lines.master, name)}" for name in _our_services(lines.master)]
    return "\n".join([*parts, *_main(lines.main), *_master(lines.master, service), next_step])


def _main(text: str) -> Iterator[str]:
    for line in text.replace(MAILBOXES, "").splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if line.startswith("#"):
            yield line
        elif name in _MILTERS:
            yield _ADD_MILTER.format(name=name, value=shlex.quote(value))
        elif name == "message_size_limit":
            yield _SIZE.format(size=value)
        elif name:
            yield f"change main {name} {shlex.quote(value)}"


def _master(text: str, front: str) -> Iterator[str]:
    """A service begins in the first column; its -o lines, and comments among them, are indented."""
    service = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            if "Replaces the line" not in stripped:  # here, the smtpd keeps its line
                yield stripped
        elif option := _OPTION.fullmatch(line):
            yield from _set(service, option[1], option[2], front)
        elif stripped:
            columns = stripped.split()
            service = "/".join(columns[:2])
            if service != front:
                yield f"postconf -M {shlex.quote(f'{service}={stripped}')}"
            elif columns[6] != "-":
                yield f"limit field {shlex.quote(f'{service}/process_limit')} {columns[6]}"


def _set(service: str, name: str, value: str, front: str) -> Iterator[str]:
    if service != front:
        yield f"postconf -P {shlex.quote(f'{service}/{name}={value}')}"
        return
    place = shlex.quote(f"{service}/{name}")
    if value.startswith("unix:"):  # a chrooted smtpd does not find the socket
        yield f"change field {shlex.quote(f'{service}/chroot')} n"
    if name == "message_size_limit":
        yield f'limit option {place} "$(below_size_limit {value})"'
    else:
        yield f"change option {place} {shlex.quote(value)}"


def _our_services(text: str) -> list[str]:
    """All but the first, which is the clients' smtpd."""
    listed = [line for line in text.splitlines() if re.match(r"[^\s#]", line)]
    return ["/".join(line.split()[:2]) for line in listed[1:]]


def _mark(text: str, service: str) -> str:
    """Our service, and the setting by which it is recognised: `NAME PARAMETER VALUE`."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if "/".join(line.split()[:2]) == service)
    options = (found for line in lines[start + 1 :] if (found := _OPTION.fullmatch(line)))
    option = next(found for found in options if "xforward" in found[1])
    return " ".join(map(shlex.quote, (service, option[1], option[2])))


def undo(lines: Lines, mode: str, service: str | None = None) -> str:
    """The commands that restore what `for_lines` changed, for one smtpd or for all. Run again, they change nothing."""
    then = "# Then: postfix reload"
    if mode == "content-filter":
        then += "\n# Queued mail would still go to the filter, so requeue it: postsuper -r ALL"
    steps = _undo_milter(lines.main) if mode == "milter" else _undo_filter(lines, mode, service)
    return "\n".join([_UNDO_HEAD, functions(mode=mode, is_undo=True), *steps, then])


def _undo_milter(text: str) -> Iterator[str]:
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if name in _MILTERS:
            steps = (":next", rf"s#(^|[ ,]+){_in_sed(value)}([ ,]+|$)#\2#", "tnext")
            yield _REMOVE_MILTER.format(name=name, pattern=" -e ".join(map(shlex.quote, steps)))
    yield "restore_all main ''"


def _undo_filter(lines: Lines, mode: str, service: str | None) -> Iterator[str]:
    name, value = _filter(lines, mode)
    if mode == "content-filter":
        yield f"restore main {name}"
        yield f'[ "$(postconf -h {name})" != {shlex.quote(value)} ] || postconf -X {name}'
    else:
        yield f"restore_all 'option|field' {shlex.quote(f'{service}/' if service else '')}"
        where = _in_sed(service) if service else "[^ ]*"
        yield _REMOVE_FILTER.format(pattern=shlex.quote(rf"s#^({where}/{name}) = {_in_sed(value)}$#\1#p"))
    used = rf"(^|/)(content_filter|smtpd_proxy_filter) = .*{_literal(_end(value))}$"
    removals = "\n".join(f"    remove_service {_mark(lines.master, name)}" for name in _our_services(lines.master))
    others = ":" if service else "restore_all 'main|option|field' ''"
    yield _IF_UNUSED.format(pattern=shlex.quote(used), removals=removals, others=others)


def _filter(lines: Lines, mode: str) -> tuple[str, str]:
    """The setting by which mail gets to us."""
    name = "content_filter" if mode == "content-filter" else "smtpd_proxy_filter"
    text = lines.main if mode == "content-filter" else lines.master
    found = re.search(rf"(?m)^(?:\s+-o )?{name} ?= ?(\S+)$", text)
    assert found is not None  # postfix_lines has it in each of the two modes
    return name, found[1]


def _end(value: str) -> str:
    """What every spelling of this filter ends with: the port, or the path of its socket."""
    return value.partition("unix:")[2] or f":{value.rpartition(':')[2]}"


def _in_sed(text: str) -> str:
    """For `s#...#`."""
    return _literal(text).replace("#", r"\#")


def _literal(text: str) -> str:
    """For `sed -E` and `grep -E`."""
    return re.sub(r"[][.*^$+?(){}|\\]", r"\\\g<0>", text)
