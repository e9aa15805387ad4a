"""The keys of the bridge's configuration that were renamed. See docs/reference/stability.md."""

from bridge.runtime.renamed_keys import Renamed

RENAMED: tuple[Renamed, ...] = ()
