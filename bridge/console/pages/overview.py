"""The overview: is mail being scanned, right now, in one sentence, and what needs attention. It refreshes itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from bridge.api.scanning import Decision
from bridge.console.call import Call
from bridge.console.live import Picture

_CHECK_S = 10.0  # how often a stream checks that its session is still valid
_QUIET_S = 15.0  # a sign of life for proxies
_PLOT_WIDTH, _PLOT_HEIGHT = 300, 48


@dataclass(frozen=True, slots=True)
class Sentence:
    tone: str  # good, warn, bad
    text: str
    more: str = ""


async def overview(call: Call) -> Response:
    return call.page("overview.html", **await _values(call, await call.console.live.now()))


async def live(call: Call) -> Response:
    """Server-sent events: the part of the page that changes, whenever it has changed."""
    return call.console.streams.stream(call.person.key, call.session_label, _events(call))


async def _events(call: Call) -> AsyncIterator[str]:
    sent, sent_at, checked_at = "", 0.0, time.monotonic()
    yield "retry: 3000\n\n"
    async for picture in call.console.live.watch():
        now = time.monotonic()
        if now - checked_at > _CHECK_S:
            checked_at = now
            if await call.run(call.sources.sessions.find, call.session, is_use=False) is None:
                yield "event: over\ndata: \n\n"
                return
        html = call.renderer.fragment("overview_live.html", **await _values(call, picture))
        if html != sent:
            sent, sent_at = html, now
            yield "event: overview\n" + "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"
        elif now - sent_at > _QUIET_S:
            sent_at = now
            yield ": still here\n\n"


async def _values(call: Call, picture: Picture) -> dict[str, Any]:
    sentence = sentence_of(picture, str(call.sources.admin))
    if call.person.sees_everything:
        return {
            "sentence": sentence,
            "data": picture.data,
            "decisions": _decisions(picture),
            "own": None,
            "nodes": await call.console.live.nodes(),
            "held": await call.console.held_counts.recent(call.sources.quarantine),
            **_plot(picture),
        }
    own = await call.console.last_hour.count(call.history)
    brief = Sentence(sentence.tone, sentence.text)  # the reasons name the machines and the other tenants
    return {"sentence": brief, "data": None, "decisions": [], "own": own, "plot": "", "peak": 0.0}


def sentence_of(picture: Picture, address: str) -> Sentence:
    """Is mail being scanned, right now?"""
    data = picture.data
    if data is None:
        return Sentence("bad", "Unknown: the daemon does not answer.", f"Its address is {address}.")
    if data["problems"]:
        what, _, why = str(data["problems"][0]).partition(": ")
        return Sentence("bad", f"{what.capitalize()}.", f"{why[:1].upper()}{why[1:]}.")
    if not data["ready"]:
        return Sentence("bad", "Mail is not being accepted.", "The daemon is starting or stopping.")
    if data["saturated_by"]:
        return Sentence(
            "warn", "Mail is being scanned, but more is arriving than can be processed.", "New mail is being deferred."
        )
    text = "Mail is being accepted, scanned and delivered."
    if data["warnings"]:
        return Sentence("warn", text, "Something needs attention.")
    return Sentence("good", text)


def _decisions(picture: Picture) -> list[tuple[str, float]]:
    """Mails per minute by decision, in a fixed order; the rest had no decision."""
    rates = dict(picture.data["decisions_per_s"]) if picture.data else {}
    found = [(str(word), rates.pop(str(word), 0.0) * 60) for word in _ORDER]
    return [*found, ("no decision", sum(rates.values()) * 60)]


_ORDER = (Decision.DELIVER, Decision.QUARANTINE, Decision.BOUNCE, Decision.DROP, Decision.UNDECIDED)


def _plot(picture: Picture) -> dict[str, Any]:
    """The points of a line of mails per second, for an SVG of fixed size."""
    if len(picture.rates) < 2:
        return {"plot": "", "peak": 0.0}
    peak = max(*picture.rates, 0.1)
    step = _PLOT_WIDTH / (len(picture.rates) - 1)
    points = [
        f"{number * step:.1f},{_PLOT_HEIGHT - 2 - rate / peak * (_PLOT_HEIGHT - 6):.1f}"
        for number, rate in enumerate(picture.rates)
    ]
    return {"plot": " ".join(points), "peak": peak}
