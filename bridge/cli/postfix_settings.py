"""What Postfix has: its settings, read with `postconf`, and the smtpd services that can pass mail to a filter."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.cli.postfix_lines import FRONT
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config

_BEHIND_POSTSCREEN = "smtpd/pass"


@dataclass(frozen=True, slots=True)
class Settings:
    """main.cf with defaults, the -o lines of master.cf by service, and its services."""

    main: dict[str, str]
    overrides: dict[str, dict[str, str]]  # "smtp/inet" -> name -> value
    services: dict[str, list[str]]  # "smtp/inet" -> the columns of master.cf

    def of(self, service: str, name: str) -> str:
        return self.overrides.get(service, {}).get(name, self.main[name])

    def smtpds(self) -> list[str]:
        return [service for service, columns in self.services.items() if columns[7] == "smtpd"]

    def fronts(self, conf: Config) -> list[str]:
        """The smtpds that take mail from the network; not the one to which scanned mail comes back."""
        taking = [smtpd for smtpd in self.smtpds() if smtpd.endswith(("/inet", "/pass"))]
        return [smtpd for smtpd in taking if not is_way_back(conf, smtpd)]


def read(directory: Path | None, *names: str) -> Settings:
    """Read the settings, including these of main.cf. Without a directory, from $MAIL_CONFIG or the installation's.

    Raises OSError or subprocess.SubprocessError.
    """
    main = _postconf(directory, *names) if names else {}
    overrides: dict[str, dict[str, str]] = {}
    for name, value in _postconf(directory, "-P").items():
        service, _, key = name.rpartition("/")
        overrides.setdefault(service, {})[key] = value
    columns = [line.split() for line in _run_postconf(directory, "-M").splitlines()]
    return Settings(main, overrides, {f"{row[0]}/{row[1]}": row for row in columns if len(row) > 7})


def front_service(conf: Config, settings: Settings, wanted: str | None = None) -> str:
    """The smtpd that is to pass mail to us: the wanted one, the one on port 25, or the only one. Raises ConfigError."""
    fronts = settings.fronts(conf)
    found = f"master.cf has {', '.join(fronts)}" if fronts else "master.cf has no smtpd service for the network"
    if wanted is not None:
        if wanted not in fronts:
            raise ConfigError(f"--service: Postfix has no smtpd service {wanted}; {found}")
        return wanted
    if FRONT in fronts:
        return FRONT
    if FRONT in settings.services and _BEHIND_POSTSCREEN in fronts:
        return _BEHIND_POSTSCREEN
    if len(fronts) == 1:
        return fronts[0]
    step = ": choose one with --service NAME" if fronts else ""
    raise ConfigError(f"Postfix has no smtpd service {FRONT}; {found}{step}")


def is_way_back(conf: Config, service: str) -> bool:
    """Whether our next hop is this service on this machine."""
    hops = [hop.address for hop in conf.relay.hops if hop.protocol == "smtp"] if conf.relay else []
    name = service.removesuffix("/inet")
    return any(hop.is_local and name.rpartition(":")[2] == str(hop.port) for hop in hops)


def why_unreadable(exc: Exception) -> str:
    if isinstance(exc, subprocess.CalledProcessError):
        return (exc.stderr or "").strip().splitlines()[-1:][0] if (exc.stderr or "").strip() else "postconf failed"
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__


def _postconf(directory: Path | None, *options: str) -> dict[str, str]:
    """Settings by name. `$name` is expanded only if there is one: that may query the DNS."""
    text = _run_postconf(directory, *options)
    if "$" in text:
        text = _run_postconf(directory, "-x", *options)
    lines = text.splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def _run_postconf(directory: Path | None, *options: str) -> str:
    place = [] if directory is None else ["-c", str(directory)]
    command = [_program(), *place, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    return done.stdout


def _program() -> str:
    """On Debian it is in /usr/sbin, which only root has on the PATH."""
    places = [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    return shutil.which("postconf", path=os.pathsep.join(places)) or "postconf"
