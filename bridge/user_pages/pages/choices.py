"""What a person chose: how often digests come, in which language, and their own lists of senders."""

from __future__ import annotations

import logging
from contextlib import suppress

from starlette.responses import Response

from bridge.console.checks import Refused
from bridge.digests.schedule import SCHEDULES
from bridge.errors import BridgeError
from bridge.lists.personal_store import BadEntry, PersonalEntry
from bridge.runtime.marked_text import N_
from bridge.user_pages.call import Call

log = logging.getLogger(__name__)

WORDS = {
    "immediate": N_("As soon as a mail is held"),
    "hourly": N_("Every hour"),
    "daily": N_("Every day"),
    "weekly": N_("Every week"),
    "never": N_("Never"),
}


async def show(call: Call) -> Response:
    stored = await call.run(call.sources.items.person, call.person)
    settings = call.sources.settings.of(call.person)
    entries = await call.run(_entries, call)
    return call.page(
        "choices.html",
        schedules=[(name, call.speak(WORDS[name])) for name in SCHEDULES],
        schedule=stored.schedule or settings.schedule,
        languages=list(call.sources.settings.config.languages),
        chosen=stored.language or call.words.code,
        entries=entries,
        has_lists=call.sources.lists is not None,
    )


async def save(call: Call) -> Response:
    schedule, language = call.form.get("schedule", ""), call.form.get("language", "")
    if schedule not in SCHEDULES or language not in call.sources.settings.config.languages:
        raise Refused(400, call.speak("Not done"), call.speak("Choose one of the options."))
    stored, usual = await call.run(call.sources.items.person, call.person), call.sources.settings.of(call.person)
    # The usual setting is not stored as a choice, so it follows changes to the configuration.
    schedule = schedule if stored.schedule or schedule != usual.schedule else ""
    language = language if stored.language or language != usual.language else ""
    async with call.audited("chose a schedule", detail=f"{schedule or 'as usual'}, {language or 'as usual'}"):
        await call.run(call.sources.items.choose, call.person, schedule=schedule, language=language)
    return call.redirect("/choices", notice="saved")


async def remove(call: Call) -> Response:
    kind, sender, recipient = (call.form.get(name, "") for name in ("kind", "sender", "recipient"))
    is_theirs = await call.run(call.sources.people.person_of, recipient) == call.person
    if call.sources.lists is None or kind not in ("block", "allow") or not is_theirs:
        raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))
    try:
        async with call.audited("removed an entry", detail=f"{kind} {sender}"[:200]):
            await call.run(call.sources.lists.remove, recipient, kind, sender)
    except Refused:
        raise
    except BadEntry as exc:  # in none of our forms
        raise Refused(400, call.speak("Not done"), call.speak("Choose one of the options.")) from exc
    except BridgeError as exc:
        log.warning("user pages: a list entry cannot be removed: %s", exc)
        text = call.speak("This cannot be done at the moment. Try again later.")
        raise Refused(503, call.speak("Not done"), text, 5) from exc
    return call.redirect("/choices", notice="removed")


def _entries(call: Call) -> list[PersonalEntry]:
    """Those for the person's addresses that mail is held for; once it is gone, still those that the person made."""
    lists, person_of = call.sources.lists, call.sources.people.person_of
    if lists is None:
        return []
    found = lists.entries(by=f"user {call.person}")
    for address in call.sources.items.addresses_of(call.person):
        with suppress(BadEntry):  # a sender chose the part after the delimiter, and made it too long for a list
            found += lists.entries(address)
    return [entry for entry in dict.fromkeys(found) if person_of(entry.recipient) == call.person]
