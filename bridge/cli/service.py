"""`scanbridge service`: the scanning service on its own, its tokens and its API keys."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.config_option import EXIT_CONFIG, fail_config
from bridge.cli.parameters import Seconds
from bridge.cli.service_learning import learning
from bridge.cli.service_place import CONFIG_HELP, DEFAULT, load_or_exit, opened_store, own_config
from bridge.cli.single_values import Group
from bridge.cli.terminal import CannotPrint, say, say_cells, say_json, say_lines
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.early_signals import EarlySignals

if TYPE_CHECKING:  # what a command needs is imported when it runs: `token` needs none of it
    from bridge.daemon.service_process import Process
    from bridge.runtime.endpoints import Endpoint
    from bridge.service.config_files import Loaded
    from bridge.service.keys import KeyRing


@click.group(invoke_without_command=True, cls=Group)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help=f"{CONFIG_HELP}  [default: service.yml]",
)
@click.pass_context
def service(context: click.Context, path: Path | None) -> None:
    """Run the scanning service on its own. SIGHUP reloads its configuration."""
    context.obj = path
    if context.invoked_subcommand is None:
        from bridge.daemon.service_process import ServiceProcess

        _run(path or DEFAULT, ServiceProcess)


def _run(path: Path, process: Callable[[Path, Loaded], Process]) -> None:
    early = EarlySignals()
    import uvloop

    from bridge.daemon import service_process

    loaded = load_or_exit(path)
    try:
        uvloop.run(service_process.run(process(path, loaded), say, early))
    except ConfigError as exc:
        fail_config(exc)
    except BridgeError as exc:
        say_lines(f"scanbridge service: {exc}", err=True)
        sys.exit(1)


@service.command()
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help=f"{CONFIG_HELP}  [default: service.yml]")
@click.option("--listen", help="Address for /livez, /readyz and /metrics, instead of worker.listen.")
@click.pass_obj
def worker(given: Path | None, path: Path | None, listen: str | None) -> None:
    """Analyse mail from the queue in NATS (serviceProviders.core.nats).

    Start as many workers as you like, on any machine, and stop them at any time: they are not listed in any
    configuration.
    On SIGTERM, a worker finishes processing its current mail before it exits; on SIGHUP, it reloads its
    configuration.
    """
    address = _address(listen)
    try:
        from bridge.daemon.worker_process import WorkerProcess
    except ImportError:
        say("scanbridge service: a library for the worker is missing: pip install 'scanbridge[nats]'", err=True)
        sys.exit(EXIT_CONFIG)
    _run(path or given or DEFAULT, lambda file, loaded: WorkerProcess(file, loaded, address))


def _address(listen: str | None) -> Endpoint | None:
    from bridge.runtime.endpoints import Endpoint

    try:
        return None if listen is None else Endpoint.parse(listen)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--listen") from exc


@service.command()
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help=f"{CONFIG_HELP}  [default: service.yml]")
@click.option("-v", "--verbose", is_flag=True, help="Also show checks that passed.")
@click.option("--json", "as_json", is_flag=True, help="Print all results as JSON.")
@click.pass_obj
def check(given: Path | None, path: Path | None, verbose: bool, as_json: bool) -> None:
    """Find problems in the service's configuration and suggest fixes.

    Tests everything that the configuration refers to, and changes nothing. Prints only problems and warnings, or
    one line if there are none. Exit code 0: no problem (there may be warnings); 1: a problem; 78: the configuration
    cannot be loaded.
    """
    from bridge.cli.check.service import check_service, lines_of

    findings = check_service(load_or_exit(path or given or DEFAULT))
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        say_json({"ok": not problems, "findings": [finding.to_dict() for finding in findings]}, indent=2)
    else:
        for line in lines_of(findings, verbose):
            say(line)
    sys.exit(1 if problems else 0)


@service.command()
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help=f"{CONFIG_HELP}  [default: service.yml]")
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the result.",
)
@click.pass_obj
def reload(given: Path | None, path: Path | None, timeout_s: float) -> None:
    """Reload the configuration of the running service (SIGHUP). Exit code 0 only if the new configuration is in use.

    The command sends a signal to the service that listens on the address in the configuration file. The file is
    checked first: exit code 78 if it has errors. Exit code 1 if no service answers within 5 seconds (no signal is
    sent in that case), if the service cannot be signalled, if it keeps its old configuration, or if there is no
    result within --timeout.
    """
    from bridge.cli import service_reload

    service_reload.reload(path or given or DEFAULT, timeout_s)


@service.command()
@click.option("--name", default="bridge", show_default=True, help="Name of the client that will use the token.")
def token(name: str) -> None:
    """Generate a token: 32 random bytes as 64 hex digits.

    Use it in the service's staticApiTokens, or in the bridge's api.tokens.
    """
    say(secrets.token_hex(32))
    entry = f"{{name: {name}, token: ..., permissions: [scan, status]}}"
    say(
        f"for the service, add the token to abby.staticApiTokens: {entry}; or write it to a file, and use token_file",
        err=True,
    )


@service.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help=f"{CONFIG_HELP}  [default: service.yml]")
@click.option("--from", "sender", default="", help="Envelope sender. Default: unknown.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.pass_obj
def explain(given: Path | None, file: Path, path: Path | None, sender: str, as_json: bool) -> None:
    """Explain what the service finds in a mail, and the reasons for its decision.

    FILE is a mail saved by a mail program (.eml). Only the mail itself is examined: lists, other
    engines and the network are not used. If there is no configuration, the service's defaults apply.
    """
    from bridge.api.scanning import MAX_MESSAGE_BYTES
    from bridge.cli import mail_file
    from bridge.cli.service_explain import lines_of
    from bridge.service.analysis.explanation import explain as explained
    from bridge.service.settings import ServiceConfig

    chosen = path or given or (DEFAULT if DEFAULT.exists() else None)
    config = load_or_exit(chosen).config if chosen else ServiceConfig()
    try:
        found = explained(mail_file.read(file, MAX_MESSAGE_BYTES), config, sender)
    except ConfigError as exc:
        fail_config(exc)
    except OSError as exc:
        say_lines(f"scanbridge service: cannot read {file}: {exc.strerror}", err=True)
        sys.exit(1)
    if as_json:
        say_json(found.to_dict(), indent=2)
    else:
        for line in lines_of(found):
            say(line)


service.add_command(learning)


@service.group()
def apikey() -> None:
    """Manage keys of the List API. If no configuration is given, the keys are those of the embedded service."""


@apikey.command("create")
@click.argument("name")
@own_config
@click.pass_obj
def create_key(path: Path | None, name: str, own: Path | None) -> None:
    """Create a key and print it. The key is shown only once."""
    if not name.strip() or not name.isprintable():
        raise click.UsageError("the name of the key is empty, or not printable: is a variable in your script unset?")
    with _keys(own or path) as keys:
        key = keys.create(name)
        try:
            say(key)
        except (CannotPrint, BrokenPipeError):  # a key that nobody has seen is of no use
            keys.revoke(name)
            raise
    say("save this key now: only its hash is stored", err=True)


@apikey.command("list")
@own_config
@click.pass_obj
def list_keys(path: Path | None, own: Path | None) -> None:
    """List the names of all keys, but not the keys themselves."""
    with _keys(own or path) as keys:
        for key in keys.listed():
            state = f"revoked {key.revoked_at}" if key.revoked_at else "active"
            say_cells(key.name, f"created {key.created_at}", state)


@apikey.command("revoke")
@click.argument("name")
@own_config
@click.pass_obj
def revoke_key(path: Path | None, name: str, own: Path | None) -> None:
    """Revoke a key. A running service stops accepting it within a second."""
    with _keys(own or path) as keys:
        keys.revoke(name)
    say(f"{name} revoked", err=True)


@contextmanager
def _keys(path: Path | None) -> Iterator[KeyRing]:
    from bridge.service.keys import KeyRing

    with opened_store(path) as store:
        yield KeyRing(store)
