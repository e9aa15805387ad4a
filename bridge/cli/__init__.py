"""The command line, `scanbridge COMMAND`: one file or folder per command.

A command's file is imported only when that command runs: `run` and `scan` need no database, and a short
command would spend most of its time importing one.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from bridge import __version__
from bridge.cli import terminal

# Name -> module and the command in it, in the order of --help.
_COMMANDS = {
    "run": ("run", "run"),
    "check": ("check.command", "check"),
    "setup": ("setup", "setup"),
    "scan": ("scan", "scan"),
    "lists": ("lists.command", "lists"),
    "quarantine": ("quarantine.command", "quarantine"),
    "status": ("status", "status"),
    "top": ("top.command", "top"),
    "reload": ("reload", "reload"),
    "service": ("service", "service"),
    "config": ("config", "configuration"),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as exc:
            raise terminal.visible_error(exc) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as exc:
            raise terminal.visible_error(exc) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"bridge.cli.{module}"), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="scanbridge")
def main() -> None:
    """Connect any mail server to an HTTP e-mail scanning service over SMTP, LMTP or milter."""
    _fill_standard_streams()
    terminal.set_up()


def _fill_standard_streams() -> None:
    """Open closed standard streams: the next file or socket would get number 2, and our log."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
