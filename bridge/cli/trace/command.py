"""`scanbridge trace FILE`: every step that a mail would go through, without delivering or storing it.

Nothing is delivered, stored or marked. Only --scan asks the scanner, and only --probe connects to next hops.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.parameters import MailAddress
from bridge.cli.single_values import Command
from bridge.cli.terminal import hide_log, say, say_cells, say_json, width
from bridge.cli.values import ip_address
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.suggestion import did_you_mean

if TYPE_CHECKING:
    from bridge.cli.trace.run import Setup
    from bridge.cli.trace.story import Step
    from bridge.config.listener import Listener
    from bridge.config.model import Config

# Those of `bridge.filter.policy.Case`, which is slow to import; a test compares them.
CASES = (
    *("deliver", "quarantine", "bounce", "drop", "undecided", "unavailable", "unreachable", "failed", "deadline"),
    *("slow", "refused", "nonsense", "saturated", "too_large"),
)
_COLUMNS = ("CASE", "ACTION", "RULE", "REPLY")


@click.command(cls=Command)
@config_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--from", "sender", type=MailAddress(may_be_empty=True), metavar="ADDRESS", default="",
    help="Envelope sender. Default: the null sender.",
)  # fmt: skip
@click.option(
    "--to", "recipients", type=MailAddress(), metavar="ADDRESS", multiple=True, default=["postmaster"],
    show_default=True, help="Envelope recipient; repeatable.",
)  # fmt: skip
@click.option("--listener", "name", metavar="NAME", help="Listener that receives the mail. Default: the first one.")
@click.option(
    "--remote-address",
    metavar="ADDRESS",
    callback=ip_address,
    help="IP address of the host that sent the mail. Default: unknown.",
)
@click.option("--helo", metavar="NAME", help="HELO or EHLO name of the host that sent the mail. Default: unknown.")
@click.option("--scan", is_flag=True, help="Send the mail to the scanner. Default: do not send it.")
@click.option(
    "--decision",
    "case",
    type=click.Choice(CASES),
    metavar="WORD",
    help="Assume this decision by the scanner, or this reason why it made none: "
    f"{', '.join(CASES)}. Default: show what the policy does in every case.",
)
@click.option("--probe", is_flag=True, help="Test whether the next hops answer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(path: Path | None, file: Path, scan: bool, case: str | None, as_json: bool, **given: Any) -> None:
    """Show every step that a mail would go through, without delivering or storing it.

    FILE is a mail saved by a mail program (.eml). It goes through a listener, the lists and the policy, as
    configured. The trace does not use the quarantine, the scanner (unless --scan is given) or the next hops (unless
    --probe is given); it only shows what they would be asked to do.
    """
    import uvloop

    if scan and case is not None:
        raise click.UsageError("choose one of --scan and --decision")
    hide_log()
    conf = load_or_exit(path)
    try:
        setup = _setup(path, conf, file, given, scan=scan)
        steps, policy = uvloop.run(_tell(setup, case))
    except ConfigError as exc:
        fail_config(exc)
    except TimeoutError:
        say("scanbridge trace: the listener did not answer in time", err=True)
        sys.exit(1)
    except ConnectionError:
        say("scanbridge trace: the listener closed the connection", err=True)
        sys.exit(1)
    except OSError as exc:
        say(f"{exc.filename or file}: {exc.strerror or exc}", err=True)
        sys.exit(1)
    except BridgeError as exc:
        say(f"scanbridge trace: {exc}", err=True)
        sys.exit(1)
    if as_json:
        say_json({"file": str(file), "steps": [step.to_dict() for step in steps], "policy": policy or None}, indent=2)
    else:
        _show(steps, policy)


def _setup(path: Path | None, conf: Config, file: Path, given: dict[str, Any], *, scan: bool) -> Setup:
    from bridge.cli import mail_file
    from bridge.cli.state import state_directory
    from bridge.cli.trace.mail_server import Given
    from bridge.cli.trace.run import Setup
    from bridge.daemon import wiring

    limit = 2 * conf.limits.max_message_size  # what is somewhat too large is refused by the listener, which is shown
    content = mail_file.as_sent(mail_file.read(file, limit))
    mail = Given(content, given["sender"], given["recipients"], given["remote_address"], given["helo"])
    return Setup(
        config=conf,
        listener=_listener(conf, given["name"]),
        state=state_directory(conf, path),
        given=mail,
        scanner=wiring.scanner(conf) if scan else None,
        probes=given["probe"],
    )


def _listener(conf: Config, name: str | None) -> Listener:
    names = [listener.name for listener in conf.listeners]
    if name is None:
        return conf.listeners[0]
    if name not in names:
        hint = did_you_mean(name, names) or f": expected {', '.join(names)}"
        raise click.UsageError(f"--listener: there is no listener {name}{hint}")
    return conf.listeners[names.index(name)]


async def _tell(setup: Setup, case: str | None) -> tuple[list[Step], list[dict[str, Any]]]:
    """The steps, and what the policy does in every case if none was chosen."""
    from bridge.cli.trace import story
    from bridge.cli.trace.run import run
    from bridge.filter.policy import Case

    try:
        done = await run(setup, Case(case or "deliver"))
        steps = list(story.before_decision(setup, done))
        if case is not None or setup.scanner is not None or not done.requests:
            return steps + list(story.decided(setup, done)), []
        policy = []
        for each in Case:
            other = done if each is done.case else await run(setup, each)
            policy += [story.policy_row(setup, record, each) for record in other.processed]
        return steps + list(story.delivery(setup, done)), policy
    finally:
        if setup.scanner is not None:
            setup.scanner.close()


def _show(steps: list[Step], policy: list[dict[str, Any]]) -> None:
    before = [step for step in steps if not policy or step.name not in ("header", "quarantine", "next_hop")]
    after = [step for step in steps if step not in before]
    _show_steps(before, 1)
    if policy:
        say()
        say("Outcomes of the policy, by the scanner's decision or the reason why there is none:")
        _show_policy(policy)
        say()
        if after:
            say("If the decision is deliver:")
            _show_steps(after, len(before) + 1)


def _show_steps(steps: list[Step], first: int) -> None:
    for number, step in enumerate(steps, first):
        say(f"{number:>2}. {step.text}")
        for line in step.lines:
            say(f"      {line}")


def _show_policy(policy: list[dict[str, Any]]) -> None:
    from bridge.cli import table
    from bridge.runtime.visible_text import visible

    groups = list(dict.fromkeys(tuple(row["recipients"]) for row in policy))
    for group in groups:
        if len(groups) > 1:
            say(f"for {', '.join(group)}:")
        rows = [row for row in policy if tuple(row["recipients"]) == group]
        cells = [list(_COLUMNS), *([visible(row[name.lower()]) for name in _COLUMNS] for row in rows)]
        if width() is None:
            for cell in cells:
                say_cells(*cell)
            continue
        for line in table.lines(cells, width(), shared=("RULE", "REPLY"), least_important=("RULE",)):
            say(line)
