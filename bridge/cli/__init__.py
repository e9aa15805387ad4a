"""The command line, `scanbridge COMMAND`: one file or folder per command.

A command's file is imported only when that command runs, so that `--help`, completion and short commands answer
at once: importing all of them takes over half a second. For the same reason, those files import what they need
for their work inside the functions that do it; `tests/cli/test_cli_imports.py` counts.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from bridge.cli import terminal
from bridge.cli.single_values import Group
from bridge.runtime.build import version

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Name -> module, the command in it, and the first sentence of its help; in the order of --help.
_COMMANDS = {
    "run": ("run", "run", "Run the daemon."),
    "check": ("check.command", "check", "Find problems and suggest fixes."),
    "setup": ("setup", "setup", "Print the mail server settings for this configuration."),
    "scan": ("scan", "scan", "Scan stored mail and print the decisions."),
    "replay": ("replay.command", "replay", "Scan stored mail again and show what would change."),
    "trace": (
        "trace.command",
        "trace",
        "Show every step that a mail would go through, without delivering or storing it.",
    ),
    "lists": ("lists.command", "lists", "Show, change and sync the service's lists."),
    "quarantine": ("quarantine.command", "quarantine", "Find, inspect, release and delete quarantined mail."),
    "report": ("report", "report", "Report mail as spam, or as ham (not spam)."),
    "explain": ("history.explain", "explain", "Explain what happened to a mail."),
    "history": (
        "history.command",
        "history",
        "List the mails that arrived and what was done with them, one line per mail, newest first.",
    ),
    "stats": ("history.stats", "stats", "Count mails by action, tag, sender, hour or another property."),
    "events": ("events", "events", "Show how many events are waiting for delivery; list, retry and drop dead letters."),
    "status": ("status", "status", "Show the daemon's health, problems first."),
    "top": ("top.command", "top", "Watch a running daemon."),
    "reload": ("reload", "reload", "Reload the running daemon's configuration (SIGHUP)."),
    "service": ("service", "service", "Run the scanning service on its own."),
    "console": ("console.command", "console", "Run the web console."),
    "digest": ("digest.command", "digest", "Tell users about the mail that is held for them."),
    "config": ("config", "configuration", "Show the effective configuration or its schema."),
}


# What people type, and what they mean.
_OTHER_WORDS = {
    **dict.fromkeys(("remove", "rm", "del"), "delete"),
    **dict.fromkeys(("start", "daemon"), "run"),
    **dict.fromkeys(("validate", "test", "verify"), "check"),
    **dict.fromkeys(("log", "logs"), "history"),
    "restart": "reload",
    "ls": "list",
    "help": "--help",
    "version": "--version",
}


class _Commands(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"bridge.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:  # click looks for similar names among the imported commands only
            raise click.exceptions.NoSuchCommand(args[0], possibilities=_COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text) for name, (_, _, text) in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.NoSuchOption as exc:
            if exc.option_name not in ("-c", "--config"):
                raise terminal.visible_error(exc) from None
            raise click.UsageError("-c goes after the command: scanbridge COMMAND -c FILE", exc.ctx) from None
        except click.ClickException as exc:
            raise terminal.visible_error(exc) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            terminal.say("Interrupted", err=True)
            raise click.exceptions.Exit(terminal.EXIT_INTERRUPTED) from None
        except click.exceptions.NoSuchCommand as exc:
            raise terminal.visible_error(_with_hint(exc)) from None
        except click.ClickException as exc:
            raise terminal.visible_error(exc) from None


def _with_hint(exc: click.exceptions.NoSuchCommand) -> click.UsageError:
    """The same error, which names the command that was meant or, if that is unknown, all commands."""
    context = exc.ctx
    if context is None or not isinstance(context.command, click.Group):
        return exc
    names = context.command.list_commands(context)
    meant = _OTHER_WORDS.get(exc.command_name, "")
    if exc.command_name == "stop" and context.parent is None:
        hint = "Stop the daemon with `systemctl stop scanbridge`, or send it SIGTERM."
    elif meant in names or (meant.startswith("-") and context.parent is None):
        hint = f"Did you mean {meant!r}?"
    elif "Did you mean" in exc.format_message():
        return exc
    else:
        hint = f"The commands are {', '.join(names)}."
    return click.UsageError(f"No such command {exc.command_name!r}. {hint}", context)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version(), prog_name="scanbridge")
def main() -> None:
    """Connect any mail server to an HTTP e-mail scanning service over SMTP, LMTP or milter."""
    _fill_standard_streams()
    terminal.set_up()


def _fill_standard_streams() -> None:
    """Open closed standard streams: otherwise the next file or socket would get number 2, and our log with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed when Python started
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
