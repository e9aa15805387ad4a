"""`scanbridge replay`: stored mail against another scanner, and what would change.

Nothing is delivered, and nothing is stored: the quarantine is only read. Exit codes: 0 nothing changed, 1 something
changed, 75 nothing changed but some mail got no decision, 3 no mail was selected; 65, 77, 78 and 130 as elsewhere.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.parameters import Limit
from bridge.cli.quarantine.filters import with_filters
from bridge.cli.single_values import Command
from bridge.cli.terminal import EXIT_INTERRUPTED, hide_log, say, say_json
from bridge.cli.values import duration, ip_address
from bridge.errors import BridgeError, ConfigError

if TYPE_CHECKING:
    from bridge.cli.replay.judgement import Replay
    from bridge.cli.replay.mails import Source
    from bridge.cli.replay.run import Settings
    from bridge.cli.replay.saved import Expected
    from bridge.cli.replay.scanners import Choice
    from bridge.config.model import Config

_EXIT_CHANGED, _EXIT_NONE, _EXIT_DATA, _EXIT_LATER, _EXIT_TOKEN = 1, 3, 65, 75, 77
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=Command)
@config_option
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--scanner", "url", metavar="URL", help="Base URL of the scanner to try. Default: scanner.urls.")
@click.option("--token-file", type=_FILE, help="File that contains the token for --scanner.")
@click.option(
    "--ca-file",
    type=_FILE,
    help="File that contains the CA certificates for --scanner and --baseline. Default: scanner.ca_file.",
)
@click.option(
    "--service",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="Try the included scanning service with this configuration; it runs only while this command runs.",
)
@click.option(
    "--baseline",
    metavar="URL|FILE",
    help="Compare with the current decisions of this scanner: give its base URL, or a configuration file for the "
    "included service. Default: compare with the decisions made when the mail arrived.",
)
@click.option("--baseline-token-file", type=_FILE, help="File that contains the token for --baseline.")
@click.option(
    "--profiles",
    is_flag=True,
    help="Compare the phishing model's profiles (cautious, balanced, strict) for the service given with --service.",
)
@click.option("--expect", type=_FILE, metavar="FILE", help="Compare with the result that --save wrote to FILE.")
@click.option("--save", type=_FILE, metavar="FILE", help="Write the result to FILE, as JSON, for use with --expect.")
@click.option(
    "--compare",
    "level",
    type=click.Choice(("decision", "verdict", "tags")),
    default="tags",
    show_default=True,
    help="What counts as a change: only the decision; the decision or the verdict; "
    "or any of decision, verdict and tags.",
)
@click.option(
    "--from",
    "envelope_sender",
    metavar="ADDRESS",
    help="Envelope sender of mail files. Default: Return-Path, else the null sender.",
)
@click.option(
    "--to",
    "recipients",
    metavar="ADDRESS",
    multiple=True,
    help="Envelope recipient of mail files; repeatable. Default: Delivered-To, else X-Original-To, else postmaster.",
)
@click.option(
    "--remote-address",
    metavar="ADDRESS",
    callback=ip_address,
    help="IP address of the host that sent the mail (for mail files). Default: unknown.",
)
@click.option(
    "--helo",
    metavar="NAME",
    help="HELO or EHLO name of the host that sent the mail (for mail files). Default: unknown.",
)
@click.option("--id", "ids", metavar="ID", multiple=True, help="Replay only this quarantined mail; repeatable.")
@functools.partial(with_filters, acts=False)
@click.option("--limit", type=Limit(), default=0, help="Replay at most this many quarantined mails, newest first.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Number of mails to scan at the same time.",
)
@click.option(
    "--timeout", "timeout_s", default="5m", show_default=True, callback=duration, help="Maximum time for one mail."
)
@click.option("--all", "everything", is_flag=True, help="Also list mail for which nothing changed.")
@click.option(
    "--plot", type=_FILE, metavar="FILE.svg", help="Write the confusion matrix to this file, as an SVG image."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print all mails as CSV, for a spreadsheet.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, with all mails.")
def replay(path: Path | None, paths: tuple[Path, ...], **given: Any) -> None:
    """Scan stored mail again and show what would change.

    The mail is scanned by another scanner, by the included service with another configuration, or by the current
    scanner.

    PATH is a mail (.eml), a directory of such files, or a Maildir. If no PATH is given, quarantined mail is replayed:
    all of it, or the mail selected with the same filters as for `quarantine list`.

    Nothing is delivered or stored; the quarantine is only read. Exit code 0: nothing changed. 1: something
    changed. 75: nothing changed, but there is no decision for some of the mail. 3: no mail was selected.
    """
    from bridge.cli.replay.judgement import Replay
    from bridge.cli.replay.run import Settings
    from bridge.cli.replay.scanners import Choice

    _check(paths, given)
    hide_log()
    conf = load_or_exit(path)
    scanner = Choice(given["url"], given["token_file"], given["service"], given["ca_file"])
    baseline = _baseline(given["baseline"], given["baseline_token_file"], given["ca_file"])
    expected = _expected(given["expect"])
    compared_with = "the decisions made when the mail arrived"
    if expected is not None:
        compared_with = str(given["expect"])
    elif baseline is not None:
        compared_with = baseline.name(conf)
    result = Replay(scanner.name(conf), compared_with, given["level"])
    sources = _sources(path, conf, paths, given)
    if not sources:
        sys.exit(_EXIT_NONE)
    settings = Settings(given["concurrency"], given["timeout_s"], given["level"])
    if given["profiles"]:
        sys.exit(_profiles(conf, scanner, sources, settings, as_json=given["as_json"]))
    code = _run(conf, result, sources, settings, (scanner, baseline, expected))
    if expected is not None and not result.is_interrupted:
        result.missing = expected.missing(result)
    _report(result, given)
    sys.exit(code or _exit_code(result))


def _check(paths: tuple[Path, ...], given: dict[str, Any]) -> None:
    selects = bool(given["wanted"] or given["ids"] or given["limit"])
    describes = (
        any(given[name] for name in ("recipients", "remote_address", "helo")) or given["envelope_sender"] is not None
    )
    if paths and selects:
        raise click.UsageError("filters, --id and --limit select quarantined mail: give either these or PATH, not both")
    if given["wanted"] and given["ids"]:
        raise click.UsageError("give --id or filters, not both")
    if describes and not paths:
        raise click.UsageError(
            "--from, --to, --remote-address and --helo are for files: quarantined mail already has an envelope"
        )
    for option, other in (("url", "service"), ("baseline", "expect"), ("as_csv", "as_json")):
        if given[option] and given[other]:
            names = {"url": "scanner", "as_csv": "csv", "as_json": "json"}
            raise click.UsageError(f"choose one of --{names.get(option, option)} and --{names.get(other, other)}")
    if given["profiles"] and not given["service"]:
        raise click.UsageError("--profiles requires --service FILE")
    for name in ("baseline", "expect", "save", "plot", "as_csv"):
        if given["profiles"] and given[name]:
            raise click.UsageError(f"--profiles cannot be combined with --{name.removeprefix('as_')}")
    if given["baseline_token_file"] and not given["baseline"]:
        raise click.UsageError("--baseline-token-file requires --baseline")
    if given["plot"] is not None and given["plot"] in (given["save"], given["expect"]):
        raise click.UsageError("--plot names the file of --save or --expect, which the picture would replace")
    for name in ("save", "plot"):
        if given[name] is not None and not given[name].absolute().parent.is_dir():
            raise click.UsageError(f"--{name}: there is no directory {given[name].absolute().parent}")


def _baseline(text: str | None, token_file: Path | None, ca_file: Path | None) -> Choice | None:
    from bridge.cli.replay.scanners import Choice

    if text is None:
        return None
    options = ("--baseline", "--baseline-token-file")
    if text.startswith(("http://", "https://")):
        return Choice(text, token_file, None, ca_file, *options)
    if not os.path.exists(text):  # noqa: PTH110 (Path.exists may raise)
        raise click.UsageError(f"--baseline: {text} is neither a URL nor an existing file")
    return Choice(None, None, Path(text), None, *options)


def _expected(path: Path | None) -> Expected | None:
    from bridge.cli.replay.saved import BadResult, Expected

    try:
        return Expected(path) if path is not None else None
    except BadResult as exc:
        _fail(str(exc), _EXIT_DATA)
    except OSError as exc:
        _fail(f"--expect: {path}: {exc.strerror}", _EXIT_DATA)


def _sources(path: Path | None, conf: Config, paths: tuple[Path, ...], given: dict[str, Any]) -> list[Source]:
    """The mails. If there are none, the reason is printed."""
    from bridge.cli.replay.mails import GivenEnvelope, Known, find_files
    from bridge.daemon import wiring

    if not paths:
        return _quarantined(path, given)
    known = Known(conf.headers.prefix, wiring.tenants_by_domain(conf), conf.scanner.tenant_uid)
    envelope = GivenEnvelope(
        _plain(given["envelope_sender"]), tuple(map(str, given["recipients"])), given["remote_address"], given["helo"]
    )
    found: list[Source] = list(find_files(paths, envelope, known))
    if not found:
        say("no mail found: a directory must be a Maildir, or contain .eml files", err=True)
    return found


def _plain(sender: str | None) -> str | None:
    return "" if sender == "<>" else sender


def _quarantined(path: Path | None, given: dict[str, Any]) -> list[Source]:
    from bridge.cli.quarantine.session import Session
    from bridge.cli.replay.mails import QuarantinedMail

    session = Session.open(path)
    if given["ids"]:
        from bridge.cli.quarantine.selection import by_ids

        selection = by_ids(session, given["ids"])
        if selection.codes:
            sys.exit(selection.codes[0])
        mails = selection.mails
    else:
        mails = session.search(**given["wanted"], limit=given["limit"])
        if not mails:
            session.say_none()
    return [QuarantinedMail(mail, session.quarantine) for mail in mails]


def _run(
    conf: Config,
    result: Replay,
    sources: Sequence[Source],
    settings: Settings,
    asked: tuple[Choice, Choice | None, Expected | None],
) -> int:
    """Returns an exit code that says more than the result; 0 if the result says it all."""
    import uvloop

    from bridge.scanner.answers import TokenRefused

    try:
        uvloop.run(_replay(conf, result, sources, settings, *asked))
    except KeyboardInterrupt:
        result.is_interrupted = True
        return EXIT_INTERRUPTED
    except ConfigError as exc:
        fail_config(exc)
    except TokenRefused as exc:
        result.stopped = f"{exc}; check the token"
        return _EXIT_TOKEN
    except BridgeError as exc:
        _fail(f"scanbridge replay: {exc}", 1)
    return 0


async def _replay(
    conf: Config,
    result: Replay,
    sources: Sequence[Source],
    settings: Settings,
    scanner: Choice,
    baseline: Choice | None,
    expected: Expected | None,
) -> None:
    from bridge.cli.progress import meter
    from bridge.cli.replay.run import Asked, Work
    from bridge.cli.replay.scanners import opened

    async with AsyncExitStack() as stack:
        asked = Asked(await stack.enter_async_context(opened(scanner, conf)), settings)
        other = None
        if baseline is not None:
            other = Asked(await stack.enter_async_context(opened(baseline, conf)), settings)
        with meter("replay", len(sources), hidden=len(sources) < 2, what="mails") as advance:
            await Work(result, asked, settings, other, expected).run(sources, advance)


def _profiles(conf: Config, service: Choice, sources: Sequence[Source], settings: Settings, *, as_json: bool) -> int:
    import uvloop

    from bridge.cli.replay import profiles

    try:
        found = uvloop.run(profiles.run(conf, service, sources, settings))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ConfigError as exc:
        fail_config(exc)
    except BridgeError as exc:
        _fail(f"scanbridge replay: {exc}", 1)
    if as_json:
        say_json(profiles.to_dict(found), indent=2)
    else:
        profiles.show(found)
    return _EXIT_LATER if profiles.lacks_decisions(found) else 0


def _report(result: Replay, given: dict[str, Any]) -> None:
    from bridge.cli.replay import plot, report, saved
    from bridge.runtime import svg

    report.show_problems(result)
    if given["as_json"]:
        say_json(result.to_dict(), indent=2)
    elif given["as_csv"]:
        report.show_csv(result)
    else:
        report.show(result, everything=given["everything"])
    try:
        if given["save"] is not None:
            saved.write(given["save"], result)
    except saved.Incomplete as exc:  # the exit code says why
        say(str(exc), err=True)
    except OSError as exc:
        _fail(f"{exc.filename}: cannot be written: {exc.strerror}", 1)
    try:
        if given["plot"] is not None:
            svg.write(given["plot"], plot.draw(result))
    except OSError as exc:
        _fail(f"{exc.filename}: cannot be written: {exc.strerror}", 1)


def _exit_code(result: Replay) -> int:
    if result.counts["changed"]:
        return _EXIT_CHANGED
    return _EXIT_LATER if result.counts["failed"] else 0


def _fail(text: str, code: int) -> NoReturn:
    say(text, err=True)
    sys.exit(code)
