"""Files that the configuration names: secrets and certificates.

The only place that knows `$CREDENTIALS_DIRECTORY`. A file that cannot be used raises a ConfigError with the key, the
file and the next step.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import ssl
from pathlib import Path

from bridge.config.listener import Tls
from bridge.config.scanner import Scanner
from bridge.errors import ConfigError
from bridge.runtime import durable_files, root_as_owner, whole_file
from bridge.runtime.tls import chain_problem, server_context

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[\x21-\x7e]{8,4096}")


def locate(name: str, directory: Path) -> Path:
    """Where a file of the configuration is: absolute, else a credential, else next to the configuration file."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    if credentials := os.environ.get("CREDENTIALS_DIRECTORY"):
        credential = Path(credentials) / path
        # os.path.exists is False for a file we may not look at; reading it later reports the reason.
        with root_as_owner.as_operator():
            if os.path.exists(credential) or not os.path.exists(directory / path):  # noqa: PTH110
                return credential
    return directory / path


def read_secret(path: Path, key: str) -> str:
    """One line of printable characters, which never appears in an error message. For a file in the configuration."""
    with root_as_owner.as_operator():
        return _secret(path, key)


def _secret(path: Path, key: str) -> str:
    try:
        text = whole_file.read_text(path, "ascii").strip()
    except OSError as exc:
        raise ConfigError(
            f"{key}: {path} cannot be read: {exc.strerror}; "
            "it must contain the secret on one line and be readable by scanbridge"
        ) from exc
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not plain text; it must contain the secret on one line") from None
    if not text:
        raise ConfigError(f"{key}: {path} is empty; write the secret into it, on one line")
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{key}: {path} must contain one line of 8 to 4096 printable characters without spaces")
    return text


def need_readable(path: Path, key: str) -> None:
    """A file that a library reads later."""
    try:
        with root_as_owner.as_operator():
            whole_file.refuse_endless(path)
    except OSError as exc:
        raise ConfigError(f"{key}: {path} cannot be read: {exc.strerror}") from exc


def make_secret(path: Path, key: str) -> None:
    """Create a random secret unless the file exists: 32 bytes as 64 hex digits, readable only by its owner."""
    _refuse_planted(path, key)
    if path.exists():
        return
    try:  # removed again if the disk is full: an empty secret would prevent every later start
        durable_files.write(path, [f"{secrets.token_hex(32)}\n".encode("ascii")], check=lambda: None)
    except FileExistsError:  # another process was faster
        return
    except OSError as exc:
        is_full = exc.errno in durable_files.FULL
        step = (
            "free some space, then start scanbridge again" if is_full else "choose a place that scanbridge can write to"
        )
        raise ConfigError(f"{key}: {path} cannot be created: {exc.strerror}; {step}") from exc


def read_own_secret(path: Path, key: str) -> str:
    """What `make_secret` has made. Raises ConfigError."""
    _refuse_planted(path, key)
    return _secret(path, key)


def _refuse_planted(path: Path, key: str) -> None:
    try:
        durable_files.refuse_planted(path)
    except OSError as exc:
        step = "find out who created it, then remove it"
        raise ConfigError(f"{key}: {path} cannot be used: it {exc.strerror}; {step}") from exc


def scanner_tls(scanner: Scanner, directory: Path) -> ssl.SSLContext:
    """Verify the scanner against the system's certificates or `ca_file`; present our own certificate if we have one."""
    context = client_tls(scanner.ca_file, directory, "scanner.ca_file")
    if scanner.client_cert_file and scanner.client_key_file:
        cert, key = locate(scanner.client_cert_file, directory), locate(scanner.client_key_file, directory)
        _load_chain(context, cert, key, "scanner.client_cert_file")
    return context


def read_certificates(name: str, directory: Path, key: str) -> bytes:
    """The PEM file, checked to hold usable certificates."""
    client_tls(name, directory, key)
    with root_as_owner.as_operator():
        return whole_file.read_bytes(locate(name, directory))


def client_tls(ca_file: str | None, directory: Path, key: str) -> ssl.SSLContext:
    """For outgoing connections: TLS 1.2 and later, names and chains verified."""
    path = locate(ca_file, directory) if ca_file else None
    try:
        with root_as_owner.as_operator():
            if path:
                whole_file.refuse_endless(path)
            context = ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as exc:
        step = "name a PEM file with the CA's certificate, or leave this key out to trust the system's CAs"
        raise ConfigError(f"{key}: {path} cannot be used: {_reason(exc)}; {step}") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def listener_tls(tls: Tls, directory: Path, key: str) -> ssl.SSLContext:
    """For incoming connections."""
    context = server_context()
    _load_chain(context, locate(tls.cert_file, directory), locate(tls.key_file, directory), f"{key}.cert_file")
    return context


def _load_chain(context: ssl.SSLContext, cert: Path, key_path: Path, key: str) -> None:
    for path, name in ((cert, key), (key_path, key.replace("cert_file", "key_file"))):
        need_readable(path, name)
    try:
        # An encrypted key would ask for its password on the terminal; an empty one makes it fail instead.
        with root_as_owner.as_operator():
            context.load_cert_chain(cert, key_path, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"{key}: {cert} and {key_path} cannot be used together: {chain_problem(exc, cert, key_path)}"
        ) from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return exc.reason or "not PEM"
    return (exc.strerror if isinstance(exc, OSError) else None) or "not usable"
