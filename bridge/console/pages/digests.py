"""How digests look: a sample in each language, with the templates and the sender of each tenant."""

from __future__ import annotations

from starlette.responses import HTMLResponse, Response

from bridge.console.call import Call, Refused
from bridge.digests.languages import NAMES
from bridge.digests.message import DigestMaker
from bridge.digests.sample import part_of
from bridge.digests.sample import sample as make_sample
from bridge.errors import ConfigError


async def sample(call: Call) -> Response:
    maker = call.sources.digests
    if maker is None:
        return call.page("digests.html", is_on=False)
    language, tenant = _chosen(call, maker)
    problem, text = "", ""
    try:
        text = part_of(await call.run(make_sample, maker, tenant, language), "plain")
    except ConfigError as exc:
        problem = str(exc)
    return call.page(
        "digests.html",
        is_on=True,
        languages=[(code, NAMES[code]) for code in maker.settings.config.languages],
        tenants=[entry.uid for entry in maker.settings.config.tenants],
        language=language,
        tenant=tenant,
        settings=maker.settings.of_tenant(tenant),
        problem=problem,
        text=text,
    )


async def html(call: Call) -> Response:
    """For the frame alone."""
    maker = call.sources.digests
    if maker is None:
        raise Refused(404, "No digests", "Digests are not configured.")
    language, tenant = _chosen(call, maker)
    try:
        content = await call.run(make_sample, maker, tenant, language)
    except ConfigError as exc:
        raise Refused(409, "The template cannot be used", str(exc)) from exc
    return HTMLResponse(part_of(content, "html"))


def _chosen(call: Call, maker: DigestMaker) -> tuple[str, str]:
    """Only what is offered."""
    asked, settings = call.request.query_params, maker.settings.config
    language, tenant = asked.get("language", ""), asked.get("tenant", "")
    known = {entry.uid for entry in settings.tenants}
    return (language if language in settings.languages else settings.languages[0]), (tenant if tenant in known else "")
