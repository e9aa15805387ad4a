"""`scanbridge scan`: submit stored mail to the scanner and print its decisions."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.parameters import MailAddress, Tenant
from bridge.cli.single_values import Command
from bridge.cli.values import ip_address
from bridge.errors import ConfigError


@click.command(cls=Command)
@config_option
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--from", "sender", default="", help="Envelope sender. Default: the null sender.")
@click.option(
    "--to",
    "recipients",
    type=MailAddress(),
    multiple=True,
    default=["postmaster"],
    show_default=True,
    help="Envelope recipient; repeatable.",
)
@click.option(
    "--remote-address",
    metavar="ADDRESS",
    callback=ip_address,
    help="IP address of the host that sent the mail, for SPF and lists of networks. Default: unknown.",
)
@click.option("--helo", metavar="NAME", help="HELO or EHLO name of the host that sent the mail. Default: unknown.")
@click.option("--tenant", type=Tenant(), metavar="UUID", help="Tenant (tenantUid). Default: scanner.tenant_uid.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
def scan(
    path: Path | None,
    files: tuple[Path, ...],
    sender: str,
    recipients: tuple[str, ...],
    remote_address: str | None,
    helo: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Scan stored mail and print the decisions.

    FILES are mails saved by a mail program (.eml). Exit code 1 if there is no decision for one or more files.
    """
    import uvloop

    from bridge.api.scanning import AnalysisRequest, BorderMtaData
    from bridge.cli.scan_files import scan_files

    conf = load_or_exit(path)
    if tenant and conf.scanner.dialect != "email-scanning":
        raise click.UsageError(f"--tenant: the {conf.scanner.dialect} dialect does not support tenants")
    tenant_uid = tenant or conf.scanner.tenant_uid
    request = AnalysisRequest(BorderMtaData(sender, recipients, remote_address, helo), tenant_uid)
    try:
        failed = uvloop.run(scan_files(conf, files, request, as_json))
    except ConfigError as exc:
        fail_config(exc)
    sys.exit(1 if failed else 0)
