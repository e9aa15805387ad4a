"""`scanbridge check`: find problems before they affect mail, and say what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from bridge.cli.check.finding import Finding
from bridge.cli.config_option import config_option, load_or_exit
from bridge.cli.single_values import Command
from bridge.cli.terminal import hide_log, say, say_json

_EXISTING = click.Path(path_type=Path, exists=True)


@click.command(cls=Command)
@config_option
@click.option(
    "--postfix", type=_EXISTING, help="Also check Postfix, using this configuration directory (such as /etc/postfix)."
)
@click.option("--exim", type=_EXISTING, help="Also check Exim, using this configuration file or directory.")
@click.option(
    "--sendmail", type=_EXISTING, help="Also check Sendmail, using this sendmail.cf or directory (such as /etc/mail)."
)
@click.option("--send-test", "test", is_flag=True, help="Send five real mails through a listener to the --to address.")
@click.option("--to", help="Recipient and sender of the mails that --send-test sends.")
@click.option("--listener", help="Listener for --send-test. Default: the first SMTP listener.")
@click.option("-v", "--verbose", is_flag=True, help="Also show checks that passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all results as JSON.")
def check(
    path: Path | None, postfix: Path | None, exim: Path | None, sendmail: Path | None,
    test: bool, to: str | None, listener: str | None, verbose: bool, as_json: bool,
) -> None:  # fmt: skip
    """Find problems and suggest fixes.

    Tests what the configuration refers to, except the receivers of events (see `events test`). Prints only problems,
    warnings and notes, or one line if there are none. Exit code 0: no problem (there may be warnings); 1: a problem;
    78: the configuration cannot be loaded.
    """
    import uvloop

    from bridge.cli.check.exim import check_exim
    from bridge.cli.check.findings import collect
    from bridge.cli.check.postfix import check_postfix
    from bridge.cli.check.send_test import send_test
    from bridge.cli.check.sendmail import check_sendmail
    from bridge.config.line_of_key import with_lines

    if test and not to:
        raise click.UsageError("--send-test sends real mail: give the recipient with --to ADDRESS")
    if (to or listener) and not test:
        raise click.UsageError("--to and --listener are for the mails that --send-test sends: add --send-test")
    conf = load_or_exit(path)
    hide_log()  # what the daemon would log is a finding here
    findings = [Finding("configuration", detail=str(path or "embedded default"))]
    findings += uvloop.run(collect(conf))
    findings += check_postfix(conf, postfix) if postfix else []
    findings += check_exim(conf, exim) if exim else []
    findings += check_sendmail(conf, sendmail) if sendmail else []
    findings = [
        replace(each, problem=with_lines(each.problem, path), warning=with_lines(each.warning, path))
        for each in findings
    ]
    outcomes = list(send_test(conf, to, listener)) if test and to else []
    problems = sum(finding.state == "problem" for finding in findings + outcomes)
    if as_json:
        shown = [finding.to_dict() for finding in findings + outcomes]
        say_json({"ok": not problems, "findings": shown}, indent=2)
    else:
        source = str(path or "embedded default")
        lines = list(_lines(findings, outcomes, verbose, source))
        for line in lines:
            say(line)
        if not verbose and not any(line.startswith("OK: ") for line in lines):
            say(f"checked: {source}", err=True)
    sys.exit(1 if problems else 0)


def _lines(findings: list[Finding], outcomes: list[Finding], verbose: bool, source: str) -> Iterator[str]:
    order = ("problem", "warning", "note")
    shown = sorted((finding for finding in findings if finding.text), key=lambda finding: order.index(finding.state))
    yield from map(str, findings if verbose else shown)
    yield from map(str, outcomes)  # always shown: --send-test asked for them
    if not verbose and all(finding.state == "note" for finding in shown):
        yield f"OK: {len(findings)} checks passed ({source})"
