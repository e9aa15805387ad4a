"""What all requests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.console.commands import Commands
from bridge.console.held_counts import HeldCounts
from bridge.console.live import Live
from bridge.console.mail_counts import LastHour, MailCounter
from bridge.console.queues import Queues
from bridge.console.render import Renderer
from bridge.console.setting import Sections
from bridge.console.sources import Sources
from bridge.console.streams import Streams
from bridge.console.undoable_jobs import Jobs
from bridge.console.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Console:
    sources: Sources
    renderer: Renderer
    live: Live
    jobs: Jobs
    queues: Queues = field(default_factory=Queues)
    commands: Commands = field(default_factory=Commands)
    uploads: Uploads = field(default_factory=Uploads)
    held_counts: HeldCounts = field(default_factory=HeldCounts)
    mail_counter: MailCounter = field(default_factory=MailCounter)
    last_hour: LastHour = field(default_factory=LastHour)
    streams: Streams = field(default_factory=Streams)
    kept_settings: dict[tuple[str, int, int], Sections] = field(default_factory=dict)  # the last file that was read
    audit_words: tuple[str, ...] = ()  # what the audit log calls the actions
