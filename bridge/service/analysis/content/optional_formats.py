"""The formats that the inspection reads if it is asked to, and if the packages that they need are installed.

Knows the names of packages, but imports none: that is left to the process that inspects the mail.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from bridge.errors import ConfigError

if TYPE_CHECKING:  # the process that inspects mail needs no settings
    from bridge.service.analyzer_settings import Mime

LIBARCHIVE, OFFICE, PDF, QR_CODES, SCRIPTS = "libarchive", "office", "pdf", "qr_codes", "scripts"
DEFAULT_FORMATS = (OFFICE, PDF, SCRIPTS)  # our own readers
FORMATS = frozenset({*DEFAULT_FORMATS, QR_CODES, LIBARCHIVE})
# The packages of those that are not ours, and the extra that installs them.
_PACKAGES = {LIBARCHIVE: (("libarchive",), "archives"), QR_CODES: (("zxingcpp", "PIL"), "pictures")}


def formats_of(settings: Mime) -> tuple[str, ...]:
    """Raises ConfigError if a format is set to true, but its packages are not installed."""
    return tuple(name for name in (*DEFAULT_FORMATS, *_PACKAGES) if _is_read(name, getattr(settings, name)))


def _is_read(name: str, setting: bool | str) -> bool:
    if setting is False or name not in _PACKAGES:
        return bool(setting)
    packages, extra = _PACKAGES[name]
    if all(map(find_spec, packages)):
        return True
    if setting is True:
        raise ConfigError(
            f"analyzers.mime.{name}: not installed: {' or '.join(packages)}; run pip install 'scanbridge[{extra}]'"
        )
    return False
