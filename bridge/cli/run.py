"""`scanbridge run`: the daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.single_values import Command
from bridge.cli.terminal import CannotPrint, discard_output, say_lines
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.build import log_start
from bridge.runtime.early_signals import EarlySignals

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.observe.redaction import Redaction

_OTHER_ADDRESSES = """\
The embedded default has fixed addresses. Stop the other program, or choose other addresses:
  scanbridge config show --demo > demo.yml   # then change the addresses in demo.yml
  scanbridge run -c demo.yml"""


@click.command(cls=Command)
@config_option
@click.option("--demo", is_flag=True, help="Use the embedded default, even if there is a configuration file.")
def run(path: Path | None, demo: bool) -> None:
    """Run the daemon. If there is no configuration file, the daemon also runs the embedded scanning service."""
    early = EarlySignals()
    import uvloop

    from bridge.daemon import config_file, state_lock, wiring
    from bridge.daemon.daemon import run as run_daemon
    from bridge.daemon.systemd import show_stack_on_abort
    from bridge.observe import log_writer

    if demo:
        path = None
    conf = load_or_exit(path)
    show_stack_on_abort()
    try:
        redaction = wiring.redaction(conf)
    except ConfigError as exc:
        fail_config(exc)
    if wiring.worker_count(conf) > 1:
        _supervise(conf, redaction, lambda: config_file.reload(path), early)
    from bridge.cli.console.beside import console_beside

    writer = log_writer.set_up(conf.log.format, conf.log.level, redaction=redaction, timestamp=conf.log.timestamp)
    log_start("scanbridge")
    config_file.log_warnings(conf)
    try:
        with console_beside() as beside, state_lock.in_use(_state(conf)):

            def on_ready() -> None:
                _welcome(conf)
                if path is None and conf.console is not None:
                    beside.start()

            uvloop.run(run_daemon(conf, writer, lambda: config_file.reload(path), early, on_ready))
    except ConfigError as exc:
        writer.close()
        fail_config(exc)
    except BridgeError as exc:
        writer.close()
        _fail(exc, path)
    finally:
        writer.close()


def _supervise(conf: Config, redaction: Redaction, reread: Callable[[], Config], early: EarlySignals) -> NoReturn:
    """Run several workers. No thread may exist when they are forked, so log lines are written directly."""
    from bridge.daemon import config_file, state_lock
    from bridge.daemon.workers.supervisor import Supervisor
    from bridge.observe import log_writer

    log_writer.set_up_without_thread(conf.log.format, conf.log.level, redaction, conf.log.timestamp)
    log_start("scanbridge")
    config_file.log_warnings(conf)
    try:
        with state_lock.in_use(_state(conf)):
            sys.exit(Supervisor(conf, reread, early, on_ready=lambda: _welcome(conf)).run())
    except ConfigError as exc:
        fail_config(exc)
    except BridgeError as exc:
        say_lines(f"scanbridge: {exc}", err=True)
        sys.exit(1)


def _state(conf: Config) -> Path:
    from bridge.daemon import directories

    return directories.make_directory(directories.state_directory(conf.state_directory), "state_directory")


def _fail(exc: BridgeError, path: Path | None) -> NoReturn:
    from bridge.config.line_of_key import with_lines
    from bridge.runtime.listening_socket import CannotListen

    say_lines(f"scanbridge: {with_lines(str(exc), path)}", err=True)
    if isinstance(exc, CannotListen) and path is None:
        say_lines(_OTHER_ADDRESSES, err=True)
    sys.exit(1)


def _welcome(conf: Config) -> None:
    """Print what a new user wants to know first."""
    from bridge.daemon import directories

    if not conf.embedded_service:
        return
    state = directories.state_directory(conf.state_directory)
    smtp = next(
        (listener for listener in conf.listeners if listener.protocol == "smtp" and listener.address.host), None
    )
    lines = ["", "scanbridge is running and listening on:"]
    lines += [f"  {listener.protocol:7} {listener.address}" for listener in conf.listeners]
    lines += [
        f"  service {conf.scanner.urls[0]} (token in {conf.scanner.token_file})",
        f"  admin   http://{conf.admin.address}  / /metrics /healthz /readyz /status",
    ]
    if conf.relay is not None:
        lines.append(f"Accepted mail is delivered to {conf.relay.next_hop}")
    s3 = conf.quarantine.s3
    lines.append(f"Quarantined mail is stored in {f's3://{s3.bucket}' if s3 else state / conf.quarantine.directory}")
    if smtp is not None:
        host, port = smtp.address.host, smtp.address.port
        lines += ["", "Try it in another terminal:", *_examples(host, port)]
    try:
        say_lines("\n".join([*lines, "", ""]))
    except (CannotPrint, BrokenPipeError):  # a full disk, a closed pipe: mail matters more
        discard_output()


def _examples(host: str, port: int) -> list[str]:
    text = r"Subject: hello\r\n\r\nhello\r\n"
    return [
        f"  swaks --server {host}:{port} --to you@example.org",
        f"  python3 -c \"import smtplib; smtplib.SMTP('{host}', {port})"
        f".sendmail('me@example.org', ['you@example.org'], '{text}')\"",
        "A mail with the GTUBE string is refused; one with the EICAR test file is quarantined (see README.md).",
    ]
