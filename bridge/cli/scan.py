"""`scanbridge scan`: submit stored mail to the scanner and print its decisions."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from uuid import UUID

import click
import uvloop

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, AnalysisResult, BorderMtaData
from bridge.cli.common import config_option, fail_config, load_or_exit
from bridge.cli.terminal import say, say_json
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.errors import ConfigError, MessageTooLarge, Saturated, ScanError
from bridge.mail.message import Message, Spool
from bridge.mail.session import canonical_ip
from bridge.scanner.client import Scanner

_BARE_LF = re.compile(rb"(?<!\r)\n")
_TIMEOUT_S = 300.0


def _address(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    try:
        return canonical_ip(value) if value is not None else None
    except ValueError:
        raise click.BadParameter("expected an IP address, for example 192.0.2.7 or 2001:db8::7") from None


@click.command()
@config_option
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--from", "sender", default="", help="Envelope sender. Default: the null sender.")
@click.option(
    "--to",
    "recipients",
    multiple=True,
    default=["postmaster"],
    show_default=True,
    help="Envelope recipient; repeatable.",
)
@click.option(
    "--remote-address",
    metavar="ADDRESS",
    callback=_address,
    help="IP address of the host that sent the mail, for SPF and lists of networks. Default: unknown.",
)
@click.option("--helo", metavar="NAME", help="What that host said in HELO or EHLO. Default: unknown.")
@click.option("--tenant", type=click.UUID, help="Tenant (tenantUid). Default: scanner.tenant_uid.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
def scan(
    path: Path | None,
    files: tuple[Path, ...],
    sender: str,
    recipients: tuple[str, ...],
    remote_address: str | None,
    helo: str | None,
    tenant: UUID | None,
    as_json: bool,
) -> None:
    """Scan stored mail and print the decisions.

    FILES are mails saved by a mail program (.eml). Exit code 1 if any file got no decision.
    """
    conf = load_or_exit(path)
    tenant_uid = str(tenant) if tenant else conf.scanner.tenant_uid
    request = AnalysisRequest(BorderMtaData(sender, recipients, remote_address, helo), tenant_uid)
    try:
        failed = uvloop.run(_scan_all(conf, files, request, as_json))
    except ConfigError as exc:
        fail_config(exc)
    sys.exit(1 if failed else 0)


async def _scan_all(conf: Config, files: tuple[Path, ...], request: AnalysisRequest, as_json: bool) -> bool:
    scanner = Scanner(wiring.scanner_settings(conf, wiring.token(conf)))
    failed = False
    # Progress goes to the terminal; standard output has results only.
    hidden = len(files) < 2 or not sys.stderr.isatty()
    with click.progressbar(files, file=sys.stderr, hidden=hidden, label="scanning") as progress:
        for file in progress:
            try:
                content = _BARE_LF.sub(b"\r\n", file.read_bytes())  # files often have LF; mail has CRLF
                result = await _scan_one(scanner, content, request)
                if as_json:
                    say_json({"file": str(file), **result.to_dict()})
                else:
                    say(_shown(file, result))
            except (ScanError, Saturated, OSError) as exc:
                failed = True
                say(f"{file}: no decision: {exc}", err=True)
    scanner.close()
    return failed


async def _scan_one(scanner: Scanner, content: bytes, request: AnalysisRequest) -> AnalysisResult:
    if len(content) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge("larger than the 50 MiB that the service accepts")
    message = Message(Spool(MAX_MESSAGE_BYTES))
    message.write(content)
    try:
        return await scanner.submit(request, message, asyncio.get_running_loop().time() + _TIMEOUT_S)
    finally:
        message.close()


def _shown(file: Path, result: AnalysisResult) -> str:
    tags = ",".join(result.tags) or "-"
    return f"{file}: {result.decision} verdict={result.verdict or '-'} tags={tags} ggrid={result.ggrid}"
