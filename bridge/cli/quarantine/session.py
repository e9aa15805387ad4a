"""What all commands of `scanbridge quarantine` share: the open quarantine and the audit trail."""

from __future__ import annotations

import logging
import logging.handlers
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.cli.config_option import configuration_used, fail_config, load_or_exit
from bridge.cli.later_notes import DELETED, REPORTED, LaterNotes
from bridge.cli.quarantine.exit_codes import fail
from bridge.cli.state import make_state_directory
from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.errors import BridgeError, ConfigError
from bridge.mail.action import Action
from bridge.quarantine.action_log import log_action
from bridge.quarantine.index_search import Query
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.record import MailRecord
from bridge.runtime.suggestion import nearest
from bridge.runtime.visible_text import visible

_SIMILAR_ID = 0.89  # of 1: an id has 19 characters, two of which may be wrong


@dataclass(frozen=True, slots=True)
class Session:
    """The configuration and its quarantine, opened."""

    config: Config
    state: Path
    directory: Path
    quarantine: Quarantine
    later: LaterNotes
    operator: str = ""  # "": the one at the terminal

    @property
    def by(self) -> str:
        """Who does it."""
        return self.operator or login_name()

    @classmethod
    def open(cls, path: Path | None) -> Session:
        log_to_syslog()
        conf = load_or_exit(path)
        try:
            state = make_state_directory(conf, path)
            place = wiring.quarantine_place(conf, state)
        except ConfigError as exc:
            fail_config(exc)
        return cls(conf, state, place.directory, Quarantine(place), LaterNotes(conf, state))

    def search(self, **wanted: Any) -> list[MailRecord]:
        """Newest first."""
        try:
            return self.quarantine.search(Query(**wanted))
        except BridgeError as exc:
            fail(f"scanbridge quarantine: {exc}")

    def say_none(self) -> None:
        """No mail was found: say where we looked."""
        place, count, used = self.quarantine.place, len(self._ids()), configuration_used()
        if count:
            say(f"no matching mail ({count:,} in quarantine at {place}){used}", err=True)
        else:
            held = "; mail that a milter listener holds is in the mail server's hold queue" if self._holds() else ""
            say(f"no mail in quarantine at {place}{held}{used}", err=True)

    def _holds(self) -> bool:
        """Whether a listener leaves quarantined mail to the mail server."""
        policies = (self.config.policy_for(listener) for listener in self.config.listeners)
        return any(policy.entry_for("quarantine").action is Action.HOLD for policy in policies)

    def unknown(self, mail_id: str) -> str:
        """The message for an id that does not exist. Suggests another id only for a slip of one or two characters."""
        ids = self._ids()
        near = nearest(mail_id, ids, similar=_SIMILAR_ID)
        if near:
            return f"no such mail; did you mean {near}?"
        shown = "`scanbridge quarantine list` shows all" if ids else "it is empty"
        return f"no such mail in the quarantine at {self.quarantine.place}; {shown}"

    def _ids(self) -> list[str]:
        try:
            return self.quarantine.ids()
        except BridgeError:  # this is for a message only
            return []

    def note_release(self, event: str, mail: MailRecord, to: tuple[str, ...], reply: str) -> None:
        """In `actions.log`, in syslog and in the history: what `later_notes` calls it."""
        self.note(event, mail.id, to=list(to), reply=reply)
        self.later.note(event, mail.id, self.by, to or mail.envelope.addresses, reply)

    def note_removal(self, mail: MailRecord, *, is_purge: bool) -> None:
        self.note("purged" if is_purge else "removed", mail.id)
        self.later.note(DELETED, mail.id, self.by)

    def note_report(self, mail_id: str, words: str, result: str, *, is_known: bool = True) -> None:
        """The mail was reported as spam or as not spam; `result` says whether rspamd has learned from it."""
        self.note(f"{REPORTED} {words}", mail_id, result=result)
        if is_known:  # else there is no mail in the history to note it for
            self.later.note(f"{REPORTED} {words}", mail_id, self.by, text=result)

    def note(self, action: str, mail_id: str, **more: object) -> None:
        """Record who did it, in syslog and in the quarantine's actions.log."""
        try:
            log_action(self.directory, action, mail_id, self.by, **more)
        except OSError as exc:
            say(f"{mail_id}: {action}, but actions.log cannot be written to: {exc.strerror}", err=True)


def log_to_syslog() -> None:
    """Send the audit trail to syslog, where there is one."""
    handler: logging.Handler = logging.NullHandler()
    if Path("/dev/log").exists():
        try:
            handler = logging.handlers.SysLogHandler("/dev/log", logging.handlers.SysLogHandler.LOG_MAIL)
            handler.ident = "scanbridge: "
        except OSError:  # no syslog daemon; actions.log has the same lines
            pass
    log = logging.getLogger("scanbridge.quarantine")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [handler]


def login_name() -> str:
    """The operator: the terminal's login, which `su` and `sudo` do not change; else SUDO_USER; else the user."""
    try:
        return os.getlogin()
    except OSError:  # no terminal
        pass
    if os.getuid() == 0 and (name := os.environ.get("SUDO_USER")):
        return visible(name)
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
