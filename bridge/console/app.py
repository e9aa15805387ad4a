"""The application: the route table behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from bridge.console.call import Call, Handler, Refused
from bridge.console.console import Console
from bridge.console.guard import Guard
from bridge.console.headers import with_allowed_methods
from bridge.console.live import Live
from bridge.console.pages import lists, quarantine
from bridge.console.render import Renderer
from bridge.console.route import Route
from bridge.console.routes import ROUTES
from bridge.console.sources import Sources
from bridge.console.undoable_jobs import Jobs


def create_console(sources: Sources) -> Console:
    words = tuple(
        sorted({route.audit for route in ROUTES if route.audit} | set(quarantine.DONE_WORDS) | set(lists.DONE_WORDS))
    )
    conf = sources.console
    live = Live(sources.admin, sources.cluster)
    return Console(sources, Renderer(conf.root_path), live, Jobs(conf.undo_period), audit_words=words)


def create_app(console: Console) -> ASGIApp:
    paths: dict[str, list[Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, []).append(route)
    routes = [
        PathRoute(path, _by_method(console, rows), methods=[row.method for row in rows]) for path, rows in paths.items()
    ]
    handlers = {404: _instead(console, _nowhere), 405: _instead(console, _wrong_method)}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return BelowPath(app, console.sources.console.root_path)


def _by_method(console: Console, rows: list[Route]):  # type: ignore[no-untyped-def]
    guards = {row.method: Guard(console, row) for row in rows}

    async def answer(request: Request) -> Response:
        return await guards["GET" if request.method == "HEAD" else request.method](request)

    return answer


def _instead(console: Console, handler: Handler):  # type: ignore[no-untyped-def]
    """A page for requests that match no row."""
    guard = Guard(console, Route("/", handler, role=None))

    async def answer(request: Request, exc: Exception) -> Response:
        return with_allowed_methods(await guard(request), exc)

    return answer


async def _nowhere(call: Call) -> Response:
    raise Refused(404, "No such page", "There is no page at this address.")


async def _wrong_method(call: Call) -> Response:
    raise Refused(405, "Not possible here", "This address cannot be used in this way. Go back and try again.")


class BelowPath:
    """Removes the path of `public_url`, unless the reverse proxy has done so."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        root = self._root_path
        if root and (path == root or path.startswith(f"{root}/")):
            path = path[len(root) :] or "/"
        await self._app({**scope, "path": path, "raw_path": None, "root_path": "", "console_path": path}, receive, send)
