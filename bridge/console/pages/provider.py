"""Sign-in with a provider: on the way there, and on the way back."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from bridge.console.call import Call, Refused
from bridge.console.headers import set_cookie
from bridge.console.oidc import LASTS_S, Provider, SignInRefused
from bridge.console.pages.sign_in import begin, next_page, note_refused

PROVIDER_COOKIE = "__Host-scanbridge-provider"
_ACTION = "signed in with the provider"


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
    cookie = call.request.cookies.get(PROVIDER_COOKIE, "")
    try:
        person, following = await _provider(call).finish(cookie, call.request.query_params)
    except SignInRefused as exc:
        await note_refused(call, _ACTION, str(exc))
        response = call.page("refused.html", 403, title="Not signed in", text=str(exc), is_signed_in=False)
    else:
        response = await begin(call, person, _ACTION, following)
    set_cookie(response, PROVIDER_COOKIE, "", 0)
    return response


def _provider(call: Call) -> Provider:
    if call.sources.provider is None:
        raise Refused(404, "No such page", "There is no page at this address.")
    return call.sources.provider
