"""Sessions, which their owners and administrators can end, and the audit log."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.roles import Role

_PAGE = 50


async def sessions(call: Call) -> Response:
    """Your own sessions; administrators of all tenants see everyone's."""
    found = await call.run(call.sources.sessions.listed, None if _sees_all(call) else call.person)
    return call.page("sessions.html", sessions=found, own=call.session_label, sees_all=_sees_all(call))


async def revoke(call: Call) -> Response:
    label = call.form.get("session", "")
    whose = await call.run(call.sources.sessions.revoke, label, None if _sees_all(call) else call.person)
    if not whose:
        raise Refused(404, "No such session", "The session has already ended, or it is not yours.")
    call.audit_detail = f"of {whose}"
    return call.redirect("/sessions", notice="session-revoked")


async def audit(call: Call) -> Response:
    asked = call.request.query_params
    wanted = {name: asked.get(name, "").strip()[:255] for name in ("name", "mail", "action")}
    before = int_or(asked.get("before", ""), 0)
    found = await call.run(call.sources.audit.find, before=before, limit=_PAGE + 1, **wanted)
    entries, more = found[:_PAGE], len(found) > _PAGE
    following = ""
    if more:
        given = "&".join(f"{name}={quote(value, safe='')}" for name, value in wanted.items() if value)
        following = call.renderer.url(f"/audit?{given}{'&' if given else ''}before={entries[-1].seq}")
    return call.page("audit.html", entries=entries, wanted=wanted, next=following, is_later=bool(before),
                     actions=call.console.audit_words)  # fmt: skip


def _sees_all(call: Call) -> bool:
    return call.person.role is Role.ADMIN and call.person.sees_everything
