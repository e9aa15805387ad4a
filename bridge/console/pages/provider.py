"""Sign-in with a provider: on the way there, and on the way back."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from bridge.console.call import Call, Refused
from bridge.console.headers import set_cookie
from bridge.console.oidc import LASTS_S, Provider, SignInRefused
from bridge.console.pages.sign_in import admit, begin, next_page, note_refused

PROVIDER_COOKIE = "__Host-scanbridge-provider"
_ACTION = "signed in with the provider"
# Counted separately: any page can make a browser call us back, but without the state, which only that browser has.
_ASKED = "provider"


async def start(call: Call) -> Response:
    provider = _provider(call)
    begun = provider.begin(next_page(call))
    try:
        response = RedirectResponse(await provider.authorization_url(begun), status_code=303)
    except SignInRefused as exc:
        raise Refused(502, "The provider cannot be used", str(exc)) from exc
    set_cookie(response, PROVIDER_COOKIE, begun.cookie, round(LASTS_S))
    return response


async def back(call: Call) -> Response:
    """The provider sends the browser here. Whatever happens, the cookie is used up."""
    provider, answer, is_counted = _provider(call), call.request.query_params, False
    try:
        begun = provider.taken(call.request.cookies.get(PROVIDER_COOKIE, ""), answer.get("state", ""))
        await admit(call, _ASKED)  # strangers come this far, and must not have us ask the provider again and again
        is_counted = True
        person = await provider.finish(begun, answer)
    except SignInRefused as exc:
        await note_refused(call, _ACTION, str(exc), is_counted=is_counted)
        response = call.page("refused.html", 403, title="Not signed in", text=str(exc), is_signed_in=False)
    else:
        await call.run(call.sources.attempts.succeeded, None, call.address, pages=_ASKED)
        response = await begin(call, person, _ACTION, begun.following)
    set_cookie(response, PROVIDER_COOKIE, "", 0)
    return response


def _provider(call: Call) -> Provider:
    if call.sources.provider is None:
        raise Refused(404, "No such page", "There is no page at this address.")
    return call.sources.provider
