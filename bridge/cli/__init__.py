"""What people type: `scanbridge COMMAND`. One file per command group."""

from __future__ import annotations

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


for command in (run, check, scan, status, service, configuration):
    main.add_command(command)
