"""Settings: the effective configuration with its origins, versions, certificates, `check` and `reload`."""

from __future__ import annotations

import json
import platform
import sqlite3
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from typing import Any

from starlette.responses import Response

from bridge import __version__
from bridge.config.effective import effective
from bridge.config.origin import origins
from bridge.console.call import Call
from bridge.console.setting import Sections, Setting
from bridge.errors import ConfigError
from bridge.observe.sample import Sample, take
from bridge.runtime.counted import counted

_CHECK_S, _RELOAD_S = 90.0, 60.0
_LIBRARIES = ("aiosmtpd", "Authlib", "httpx2", "Jinja2", "nh3", "pydantic", "SQLAlchemy", "starlette", "uvicorn")
_SOON_S = 21 * 86400.0
_EXPIRY = "scanbridge_tls_certificate_expiry_time_seconds"


@dataclass(frozen=True, slots=True)
class Certificate:
    role: str
    name: str
    expires_at: float

    @property
    def tone(self) -> str:
        left = self.expires_at - time.time()
        return "bad" if left <= 0 else "warn" if left < _SOON_S else "good"


async def settings(call: Call) -> Response:
    return await _page(call)


async def check(call: Call) -> Response:
    done = await call.console.commands.run((*call.sources.command, "check", "--json", *_named(call)), _CHECK_S)
    try:
        found = json.loads(done.output)
        findings, problem = found["findings"], ""
    except (ValueError, KeyError, TypeError):  # the configuration has errors
        findings, problem = [], done.errors or done.output or "The check ended without a result."
    worst = sum(finding["state"] == "problem" for finding in findings)
    call.audit_detail = "the configuration cannot be loaded" if problem else counted(worst, "problem")
    return await _page(call, findings=findings, check_problem=problem)


async def reload(call: Call) -> Response:
    limit_s = f"{_RELOAD_S - 5:.0f}"
    done = await call.console.commands.run(
        (*call.sources.command, "reload", "--timeout", limit_s, *_named(call)), _RELOAD_S
    )
    call.audit_failed = done.code != 0
    call.audit_detail = done.errors.partition("\n")[0] if done.code else "the new configuration is in use"
    return await _page(call, reload=(done.code == 0, done.errors or done.output))


def _named(call: Call) -> tuple[str, ...]:
    return ("-c", str(call.sources.path.absolute())) if call.sources.path else ()


async def _page(call: Call, **result: Any) -> Response:
    sections, problem = await call.run(_settings, call)
    sample = await call.run(take, call.sources.admin)
    values = {"findings": None, "check_problem": "", "reload": None, **result}
    return call.page(
        "settings.html",
        sections=sections,
        problem=problem,
        place=str(call.sources.path or "embedded default"),
        versions=list(_versions(sample)),
        certificates=_certificates(sample),
        running=sample.state if sample else None,
        **values,
    )


def _settings(call: Call) -> Sections:
    """The configuration as it is in the file now, section by section; or its errors. Read again if it has changed."""
    path = call.sources.path
    try:
        state = path.stat() if path else None
        stamp = (str(path), state.st_mtime_ns, state.st_size) if state else None
    except OSError:
        stamp = None
    kept = call.console.kept_settings
    if stamp is None or stamp not in kept:
        found = _read_settings(call)
        kept.clear()
        if stamp is None:
            return found
        kept[stamp] = found
    return kept[stamp]


def _read_settings(call: Call) -> Sections:
    try:
        conf = call.sources.reread()
        data = effective(conf, hides_paths=True)
        data["state_directory"] = str(call.sources.state)
        found = [
            Setting(_key(where), _value(data, where), origin)
            for where, origin in origins(data, conf, call.sources.path)
        ]
    except (ConfigError, OSError) as exc:
        return [], str(exc)
    return [(name, list(group)) for name, group in groupby(found, lambda setting: _section(setting.key))], ""


def _section(key: str) -> str:
    return key.partition(".")[0].partition("[")[0]


def _key(where: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")


def _value(data: Any, where: tuple[int | str, ...]) -> str:
    for part in where:
        data = data[part]
    return json.dumps(data, ensure_ascii=False) if not isinstance(data, str) else data


def _versions(sample: Sample | None) -> Iterator[tuple[str, str]]:
    yield "Console", __version__
    yield "Daemon", str(sample.state["version"]) if sample else "does not answer"
    yield "Python", platform.python_version()
    yield "System", f"{platform.system()} {platform.release()}"
    yield "SQLite", sqlite3.sqlite_version
    yield "TLS", ssl.OPENSSL_VERSION
    for name in _LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _certificates(sample: Sample | None) -> list[Certificate]:
    rows = sample.values.get(_EXPIRY, {}) if sample else {}
    found = [Certificate(dict(labels).get("role", ""), dict(labels).get("name", ""), at) for labels, at in rows.items()]
    return sorted(found, key=lambda certificate: certificate.expires_at)
