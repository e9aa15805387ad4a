"""The admin address, read without the other keys of the configuration.

`status`, `top` and `reload` need nothing else, and they must answer when the file has an error that the running
daemon does not know yet. Building the whole model takes 150 ms (Python 3.11), which is most of a `status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridge.config.renamed import RENAMED
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.renamed_keys import Renamed

DEFAULT = Endpoint("127.0.0.1", 9082)


def read(path: Path | None, renamed: Sequence[Renamed] = RENAMED) -> Endpoint | None:
    """The address in the file, or the default; None if only the whole configuration can tell what is wrong."""
    if path is None:
        return DEFAULT
    try:
        data, _ = yaml_file.read(path, yaml_file.read_text(path), renamed)
        return Endpoint.parse(data.get("admin", {}).get("address", str(DEFAULT)))
    except (OSError, ConfigError, ValueError, AttributeError, TypeError):  # unreadable, not YAML, or another type
        return None
