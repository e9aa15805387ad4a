"""What a person chose: how often digests come, in which language, and their own lists of senders."""

from __future__ import annotations

from starlette.responses import Response

from bridge.console.checks import Refused
from bridge.digests.schedule import SCHEDULES
from bridge.errors import BridgeError
from bridge.lists.personal import PersonalEntry
from bridge.user_pages.call import N_, Call

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
        raise Refused(400, call.speak("Not done"), call.speak("Choose one of the answers."))
    await call.run(call.sources.items.choose, call.person, schedule=schedule, language=language)
    await call.audit("chose a schedule", detail=f"{schedule}, {language}")
    return call.redirect("/choices", notice="saved")


async def remove(call: Call) -> Response:
    kind, sender, recipient = (call.form.get(name, "") for name in ("kind", "sender", "recipient"))
    is_theirs = await call.run(call.sources.people.person_of, recipient) == call.person
    if call.sources.lists is None or kind not in ("block", "allow") or not is_theirs:
        raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))
    try:
        await call.run(call.sources.lists.remove, recipient, kind, sender)
    except BridgeError as exc:
        raise Refused(409, call.speak("Not done"), str(exc)) from exc
    await call.audit("removed an entry", detail=f"{kind} {sender}"[:200])
    return call.redirect("/choices", notice="removed")


def _entries(call: Call) -> list[PersonalEntry]:
    """Of all addresses of the person that mail was held for."""
    lists = call.sources.lists
    addresses = call.sources.items.addresses_of(call.person) if lists is not None else []
    return [entry for address in addresses for entry in (lists.entries(address) if lists is not None else ())]
