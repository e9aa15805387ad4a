"""What people type: `scanbridge COMMAND`. One file per command group."""

from __future__ import annotations

import os

import click

from bridge import __version__
from bridge.cli.check import check
from bridge.cli.configuration import configuration
from bridge.cli.run import run
from bridge.cli.scan import scan
from bridge.cli.service import service
from bridge.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="scanbridge")
def main() -> None:
    """Let any mail server use an HTTP e-mail scanning service, over SMTP, LMTP or milter."""
    _fill_standard_streams()


def _fill_standard_streams() -> None:
    """A closed standard stream would have its number given to the next file or socket, and our log written there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)


for command in (run, check, scan, status, service, configuration):
    main.add_command(command)
