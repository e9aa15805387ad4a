"""Tells releasers what users ask for: immediately, or later if that failed or the process ended before.

A request waits in the console even if no one is notified of it, but it may be days before anyone looks there. Who was
notified is stored after each mail, so that no one is notified twice because another address does not work.
"""

from __future__ import annotations

import asyncio
import logging
import time

from bridge.digests.languages import language
from bridge.digests.message import MAX_SENDER, MAX_SUBJECT, shown
from bridge.digests.requests import Notice
from bridge.digests.why_held import reason_of, words_for
from bridge.errors import BridgeError
from bridge.mail.next_hop import NextHopError
from bridge.quarantine.quarantine import MailNotFound
from bridge.quarantine.record import MailRecord
from bridge.runtime.visible_text import visible
from bridge.user_pages.sources import UserSources

log = logging.getLogger(__name__)

_SEND_S = 30.0


async def tell_again(sources: UserSources, now: float) -> None:
    """Notify releasers of every request of which they were not told when it was stored. Raises BridgeError."""
    for notice in await asyncio.to_thread(sources.requests.due_notices, now):
        try:
            mail = await asyncio.to_thread(sources.quarantine.read, notice.request.mail)
        except MailNotFound:
            await asyncio.to_thread(sources.requests.told, notice.request.seq)
            continue
        await tell(sources, notice, mail)


async def tell(sources: UserSources, notice: Notice, mail: MailRecord) -> None:
    """Releasers who cannot be reached now are notified later. Raises TablesFailed if this cannot be recorded."""
    seq, told = notice.request.seq, list(notice.told)
    wanted = sources.settings.of(notice.request.recipient).notify
    for address in wanted:
        if address not in told and await _is_told(sources, notice, mail, address):
            told.append(address)
            await asyncio.to_thread(sources.requests.told_some, seq, told)
    if all(address in told for address in wanted):
        await asyncio.to_thread(sources.requests.told, seq)


async def _is_told(sources: UserSources, notice: Notice, mail: MailRecord, address: str) -> bool:
    """Sends the notice; also true if the address will never accept it."""
    try:
        content = await asyncio.to_thread(_content, sources, notice, mail, address)
        async with asyncio.timeout(_SEND_S):
            await sources.send(address, content)
    except (BridgeError, TimeoutError) as exc:
        to = sources.redact(address)
        log.warning("request: the notification could not be sent: to=%s error=%r", to, str(exc))
        return isinstance(exc, NextHopError) and not exc.reply.is_temporary
    except Exception:  # something about this mail: releasers are still told of the others
        log.exception("request: the notification could not be created: id=%s", mail.id)
        return False
    return True


def _content(sources: UserSources, notice: Notice, mail: MailRecord, address: str) -> bytes:
    settings = sources.settings.of(notice.request.recipient)
    words = language(settings.language)
    values = {
        "kind": notice.request.kind,
        "person": visible(notice.request.person)[:MAX_SENDER],
        "subject": shown(mail.subject, MAX_SUBJECT) or words.say("(no subject)"),
        "sender": shown(mail.envelope.sender, MAX_SENDER) or words.say("a mail server"),
        "time": words.time(mail.time.timestamp(), sources.settings.clock.zone),
        "why": words.say(words_for(reason_of(mail))),
        "console_url": f"{sources.console_url}/requests",
    }
    return sources.maker.note(address, settings, words, "request.txt", time.time(), **values)
