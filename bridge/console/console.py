"""What all requests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.console.jobs import Jobs
from bridge.console.live import Live
from bridge.console.render import Renderer
from bridge.console.sources import Sources


@dataclass(frozen=True, slots=True)
class Console:
    sources: Sources
    renderer: Renderer
    live: Live
    jobs: Jobs = field(default_factory=Jobs)
    audit_words: tuple[str, ...] = ()  # what the audit log calls the actions
