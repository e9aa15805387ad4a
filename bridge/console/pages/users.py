"""Local users: administrators add, change and remove them, and give them a password or a link to choose one.

A user who is changed has to sign in again. The last administrator cannot be removed: no one could undo that here.
"""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from bridge.console import audit as audit_log
from bridge.console.call import Call, Refused
from bridge.console.pages.sign_in import note_refused, with_form_cookie
from bridge.console.roles import Person, Role, Tenants
from bridge.console.sessions import PASSWORD_LINK_S
from bridge.console.tokens import is_token
from bridge.console.url_part import from_part, to_part
from bridge.console.users import MIN_PASSWORD, User, UserMistake
from bridge.runtime.storable import is_storable

PER_PAGE = 50
_MAX_TENANTS = 1000
_ACTION = "set a password with a link"


async def users(call: Call) -> Response:
    return await _users_page(call)


async def user(call: Call) -> Response:
    return _user_page(call, await _found(call, from_part(call.path["name"])))


async def add(call: Call) -> Response:
    name, password = call.form.get("name", "").strip(), call.form.get("password", "")
    call.audit_detail = name[:100]
    try:
        role, tenants = _rights(call)
        await call.run_among_few(call.queues.passwords, call.sources.users.add, name, password or None, role, tenants)
    except UserMistake as exc:
        call.audit_failed, call.audit_detail = True, f"{name[:100]}: {exc}"
        return await _users_page(call, 400, mistake=_sentence(exc))
    call.audit_detail = f"{name}: {_in_words(role, tenants)}"
    return call.redirect("/users", notice="user-added") if password else await _link_page(call, name)


async def change(call: Call) -> Response:
    found = await _named(call)
    try:
        role, tenants = _rights(call)
        await call.run(call.sources.users.change, found.person.name, role, tenants)
    except UserMistake as exc:
        return _mistake(call, found, exc)
    call.audit_detail = f"{found.person.name}: {_in_words(role, tenants)}"
    return call.redirect(f"/users/{to_part(found.person.name)}", notice="user-changed")


async def password(call: Call) -> Response:
    found = await _named(call)
    given = call.form.get("password", "")
    try:
        await call.run_among_few(call.queues.passwords, call.sources.users.set_password, found.person.name, given)
    except UserMistake as exc:
        return _mistake(call, found, exc)
    return call.redirect(f"/users/{to_part(found.person.name)}", notice="password-set")


async def link(call: Call) -> Response:
    return await _link_page(call, (await _named(call)).person.name)


async def remove(call: Call) -> Response:
    found = await _named(call)
    if call.form.get("sure") != "yes":
        raise Refused(400, "Not confirmed", "Nothing was done: to remove the user, select the check box.")
    try:
        await call.run(call.sources.users.remove, found.person.name, keep_admin=True)
    except UserMistake as exc:
        return _mistake(call, found, exc)
    return call.redirect("/users", notice="user-removed")


# A link with which users choose their password


async def choose(call: Call) -> Response:
    """A form, because a GET must not use the link up."""
    if not is_token(call.path["token"]):
        raise Refused(404, "No such page", "There is no page at this address.")
    return with_form_cookie(call, "password.html", token=call.path["token"], problem="", minimum=MIN_PASSWORD)


async def chosen(call: Call) -> Response:
    token, given = call.form.get("token", ""), call.form.get("password", "")
    try:
        name = await call.run_among_few(call.queues.passwords, call.sources.users.use_link, token, given)
    except UserMistake as exc:
        values = {"token": token, "problem": _sentence(exc), "minimum": MIN_PASSWORD}
        return with_form_cookie(call, "password.html", 400, **values)
    if not name:
        await note_refused(call, _ACTION, "used before, too old, or not a link")
        text = "This link has already been used, or has expired. An administrator can make a new one."
        raise Refused(403, "The link does not work", text)
    await call.run(call.sources.audit.write, None, call.address, _ACTION, name=name, result=audit_log.DONE)
    return call.redirect("/sign-in", notice="password-chosen")


async def _link_page(call: Call, name: str) -> Response:
    token = await call.run(call.sources.links.make_for_password, name)
    url = f"{call.sources.console.base}/password/{token}"
    return call.page("user_link.html", name=name, link=url, hours=round(PASSWORD_LINK_S / 3600))


# What the forms say


async def _named(call: Call) -> User:
    """The user that the form is about."""
    found = await _found(call, call.form.get("name", ""))
    call.audit_detail = found.person.name
    return found


async def _found(call: Call, name: str) -> User:
    found = await call.run(call.sources.users.find, name[:200]) if name and is_storable(name) else None
    if found is None:
        raise Refused(404, "No such user", "This user no longer exists.")
    return found


def _rights(call: Call) -> tuple[Role, Tenants]:
    """Raises UserMistake. Choosing nothing must not give access to all mail."""
    try:
        role = Role.named(call.form.get("role", ""))
    except ValueError:
        raise UserMistake("choose a role") from None
    scope, texts = call.form.get("scope", ""), [*call.form_lists.get("tenant", [])]
    texts += call.form.get("others", "").split()
    if scope == "all":
        return role, None
    if scope != "some" or not texts:
        raise UserMistake("choose all mail, or at least one tenant")
    if len(texts) > _MAX_TENANTS:
        raise UserMistake(f"a user can have at most {_MAX_TENANTS:,} tenants")
    try:
        return role, frozenset(str(UUID(text)) for text in texts)
    except ValueError:
        raise UserMistake("a tenant must be a UUID, for example 123e4567-e89b-12d3-a456-426614174000") from None


def _in_words(role: Role, tenants: Tenants) -> str:
    return f"{role}, {'all mail' if tenants is None else ', '.join(sorted(tenants))}"


# Pages


async def _users_page(call: Call, status: int = 200, mistake: str = "") -> Response:
    after = call.request.query_params.get("after", "")[:100]
    found = await call.run(call.sources.users.listed, after=after, limit=PER_PAGE + 1)
    following = found[PER_PAGE - 1].person.name if len(found) > PER_PAGE else ""
    typed = {name: call.form.get(name, "") for name in ("name", "role", "scope", "others")}
    typed["tenant"] = set(call.form_lists.get("tenant", []))  # type: ignore[assignment]
    return call.page(
        "users.html", status, users=found[:PER_PAGE], after=after, following=following, mistake=mistake, typed=typed,
        tenants=_tenants(call), minimum=MIN_PASSWORD, roles=[str(role) for role in Role],
    )  # fmt: skip


def _user_page(call: Call, found: User, status: int = 200, mistake: str = "") -> Response:
    person: Person = found.person
    known = _tenants(call)
    own = person.tenants or frozenset()
    typed = {
        "role": str(person.role), "scope": "all" if person.sees_everything else "some", "tenant": own,
        "others": "\n".join(sorted(own - set(known))),
    }  # fmt: skip
    return call.page(
        "user.html", status, user=found, mistake=mistake, typed=typed, tenants=known, minimum=MIN_PASSWORD,
        roles=[str(role) for role in Role], is_own=person.key == call.person.key,
    )  # fmt: skip


def _mistake(call: Call, found: User, exc: UserMistake) -> Response:
    call.audit_failed, call.audit_detail = True, f"{found.person.name}: {exc}"
    return _user_page(call, found, 400, _sentence(exc))


def _tenants(call: Call) -> list[str]:
    return [tenant.uid for tenant in call.sources.config.tenants][:100]


def _sentence(exc: UserMistake) -> str:
    text = str(exc)
    return f"{text[:1].upper()}{text[1:]}."
