"""Sign-in with a real OpenID Connect provider, and everything that is refused."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urljoin, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from sqlalchemy import delete, select

from bridge.config.console import Oidc
from bridge.console.database import ConsoleStore, attempts
from bridge.console.guard import SESSION_COOKIE
from bridge.console.oidc import LASTS_S, Provider, SignInRefused
from bridge.console.pages.provider import PROVIDER_COOKIE
from bridge.console.roles import Role
from bridge.console.sessions import SessionLimits, Sessions
from bridge.console.sign_in_attempts import MAX_PER_ADDRESS
from bridge.runtime.database import Database
from bridge.testing import free_port, until
from tests.console.console_kit import TENANT_A, Answer, Browser, World, world
from tests.node_packages import node_and_modules

HERE = Path(__file__).parent
ROLES: list[dict[str, Any]] = [
    {"group": "mail-admins", "role": "admin"},
    {"group": "mail-viewers", "role": "viewer", "tenants": [TENANT_A]},
]
SECRET = "a secret of the tests"


@contextmanager
def provider(directory: Path, redirect: str, **variables: str) -> Iterator[str]:
    """The issuer."""
    node, modules = node_and_modules(HERE / "node", "console-node")
    port = free_port()
    script = shutil.copy(HERE / "node" / "provider.mjs", directory / "provider.mjs")
    (directory / "node_modules").symlink_to(modules)
    with (directory / "provider.log").open("wb") as log:
        process = subprocess.Popen(
            [node, script, str(port), redirect], stdout=log, stderr=log, cwd=directory, env=variables or None
        )
    try:
        until(lambda: "ready" in (directory / "provider.log").read_text() or process.poll() is not None, "the provider")
        assert process.poll() is None, (directory / "provider.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def agree(url: str, name: str) -> str:
    """Sign in at the provider as a browser would, and agree; returns the address that it sends the browser back to."""
    with httpx2.Client(timeout=120) as client:
        answer = client.get(url)
        for _ in range(12):
            if answer.is_redirect:
                target = urljoin(str(answer.url), answer.headers["location"])
                if "/sign-in/back" in target:
                    return target
                answer = client.get(target)
                continue
            action = re.search(r'action="([^"]+)"', answer.text)
            assert action is not None, answer.text
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            form = {"prompt": prompt[1] if prompt else "login", "login": name, "password": "any"}
            answer = client.post(urljoin(str(answer.url), action[1]), data=form)
    raise AssertionError(f"no way back: {answer.text[:500]}")


def with_parameters(url: str, **changed: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **changed})).geturl()


@pytest.fixture(scope="module")
def signing_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    """A console whose people are the provider's."""
    directory = tmp_path_factory.mktemp("oidc")
    (directory / "client-secret").write_text(SECRET.replace(" ", "-") + "\n")
    port = free_port()
    with provider(directory, f"http://127.0.0.1:{port}/sign-in/back") as issuer:
        oidc = {"issuer": issuer, "client_id": "public", "roles": ROLES, "label": "the test provider"}
        with world(directory, {"address": f"127.0.0.1:{port}", "oidc": oidc}) as made:
            made.console.port = port
            yield made, issuer


def begun(browser: Browser) -> str:
    """The address at the provider."""
    answer = browser.get("/sign-in/provider?next=/sessions")
    assert answer.status == 303, answer.text
    return answer.target


def back(browser: Browser, url: str) -> Answer:
    parts = urlsplit(url)
    return browser.get(f"{parts.path}?{parts.query}")


def test_a_person_signs_in_with_role_and_tenants_of_their_group(signing_in: tuple[World, str]) -> None:
    """The code flow with PKCE, state and nonce; the first group that matches counts."""
    world, issuer = signing_in
    browser = world.console.browser()
    assert "Sign in with the test provider" in browser.get("/sign-in").text
    url = begun(browser)
    asked = parse_qs(urlsplit(url).query)
    assert url.startswith(f"{issuer}/auth?") and asked["code_challenge_method"] == ["S256"]
    assert asked["state"] != asked["nonce"] and "openid" in asked["scope"][0]
    answer = back(browser, agree(url, "ann"))
    assert (answer.status, answer.target) == (303, "/sessions")
    page = browser.get("/sessions").text
    assert "ann (127.0.0.1" in page and "admin" in page and PROVIDER_COOKIE not in browser.cookies
    viewer = world.console.browser()
    back(viewer, agree(begun(viewer), "vic"))
    assert "viewer, 1 tenant" in viewer.get("/sessions").text
    assert viewer.get("/audit").status == 403 and viewer.get("/mail/MAILB").status == 404


def test_a_name_that_is_used_again_gives_no_access(signing_in: tuple[World, str]) -> None:
    """The sessions of the person who had it cannot be seen or ended, and the audit log tells the two apart."""
    world, _ = signing_in
    first, second, admin = (world.console.browser() for _ in range(3))
    for browser, name in ((first, "vic"), (second, "vic-2"), (admin, "ann")):
        assert back(browser, agree(begun(browser), name)).status == 303
    label = re.search(r'name="session" value="(\w+)"', first.get("/sessions").text)
    assert label is not None
    page = second.get("/sessions").text
    assert "vic (127.0.0.1" in page and label[1] not in page
    assert second.post("/sessions/revoke", {"session": label[1]}).status == 404
    assert first.get("/sessions").status == 200
    log = admin.get("/audit?action=signed+in+with+the+provider").text
    assert "<small>vic</small>" in log and "<small>vic-2</small>" in log
    assert "vic-2" not in admin.get("/audit?name=vic").text.partition("<tbody>")[2]


@pytest.mark.parametrize("sub", [None, "", 7, "x" * 256, "a\nb"])
def test_a_person_without_a_usable_subject_is_refused(sub: object) -> None:
    """Nothing else identifies anybody."""
    used = Provider(settings(ISSUER), REDIRECT)
    claims = {"sub": sub, "groups": ["mail-admins"], "preferred_username": "ann"}
    with pytest.raises(SignInRefused, match="who you are"):
        used._person(claims)
    assert used._person({**claims, "sub": "s1"}).subject == "s1"


@pytest.mark.parametrize("name", ["zoe", "nobody"])
def test_a_person_in_no_group_of_ours_is_refused(signing_in: tuple[World, str], name: str) -> None:
    """Also if the claim is missing altogether."""
    browser = signing_in[0].console.browser()
    answer = back(browser, agree(begun(browser), name))
    assert answer.status == 403 and "none of your groups may use this console" in answer.text
    assert SESSION_COOKIE not in browser.cookies


def test_a_wrong_state_is_refused(signing_in: tuple[World, str]) -> None:
    """An answer that another browser got, or that somebody made up."""
    world, _ = signing_in
    browser, other = world.console.browser(), world.console.browser()
    url = agree(begun(browser), "ann")
    begun(other)
    for target in (with_parameters(url, state="x"), with_parameters(url, state=""), url):
        cookie = dict(other.cookies)
        answer = back(other, target)
        assert answer.status == 403 and "does not belong to this sign-in" in answer.text
        assert SESSION_COOKIE not in other.cookies
        other.cookies = cookie
    stranger = world.console.browser()
    assert "was not started in this browser" in back(stranger, url).text


def test_a_wrong_nonce_is_refused(signing_in: tuple[World, str]) -> None:
    """The ID token is for another request."""
    world, _ = signing_in
    browser = world.console.browser()
    answer = back(browser, agree(with_parameters(begun(browser), nonce="another"), "ann"))
    assert answer.status == 403 and "ID token is not valid" in answer.text
    assert "invalid_claim: Invalid claim: 'nonce'" in world.console.log and SESSION_COOKIE not in browser.cookies


def test_a_code_is_used_once(signing_in: tuple[World, str]) -> None:
    """Neither the whole answer nor its code alone works again."""
    world, _ = signing_in
    browser = world.console.browser()
    url = agree(begun(browser), "ann")
    cookies = dict(browser.cookies)
    assert back(browser, url).status == 303
    again = world.console.browser()
    again.cookies = cookies
    assert "has already been used" in back(again, url).text
    fresh = world.console.browser()
    state = parse_qs(urlsplit(begun(fresh)).query)["state"][0]
    answer = back(fresh, with_parameters(url, state=state))
    assert answer.status == 403 and "refused the request" in answer.text and SESSION_COOKIE not in fresh.cookies


def test_another_verifier_is_refused(signing_in: tuple[World, str]) -> None:
    """PKCE: a code that was stolen is of no use in another browser."""
    world, _ = signing_in
    victim, thief = world.console.browser(), world.console.browser()
    stolen = parse_qs(urlsplit(agree(begun(victim), "ann")).query)["code"][0]
    own = agree(begun(thief), "vic")
    answer = back(thief, with_parameters(own, code=stolen))
    assert answer.status == 403 and SESSION_COOKIE not in thief.cookies


@pytest.mark.parametrize(
    "changed", [{"iss": "https://evil.example"}, {"code": ""}, {"error": "access_denied"}], ids=lambda c: next(iter(c))
)
def test_other_answers_are_refused(signing_in: tuple[World, str], changed: dict[str, str]) -> None:
    """Of another provider, without a code, and refusals."""
    browser = signing_in[0].console.browser()
    answer = back(browser, with_parameters(agree(begun(browser), "ann"), **changed))
    assert answer.status == 403 and SESSION_COOKIE not in browser.cookies


def settings(issuer: str, client: str = "console", **more: Any) -> Oidc:
    return Oidc.model_validate({"issuer": issuer, "client_id": client, "roles": ROLES, **more})


async def whole(used: Provider, name: str) -> Any:
    made = used.begin("/")
    url = agree(await used.authorization_url(made), name)
    answer = dict(parse_qsl(urlsplit(url).query))
    return await used.finish(used.taken(made.cookie, answer["state"]), answer)


REDIRECT = "http://127.0.0.1:1/sign-in/back"


@pytest.mark.parametrize("client", ["console", "posting", "public"])
async def test_every_kind_of_client_works(tmp_path: Path, client: str) -> None:
    """With a secret in the header or in the form, and without one."""
    with provider(tmp_path, REDIRECT) as issuer:
        used = Provider(settings(issuer, client), REDIRECT, None if client == "public" else SECRET)
        person = await whole(used, "one")
    assert (person.name, person.role, person.tenants) == ("one", Role.VIEWER, frozenset({TENANT_A}))


async def test_groups_may_be_at_the_userinfo_endpoint_only(tmp_path: Path) -> None:
    """As with providers that keep ID tokens small."""
    with provider(tmp_path, REDIRECT, ONLY_USERINFO="1") as issuer:
        person = await whole(Provider(settings(issuer), REDIRECT, SECRET), "ann")
    assert person.role is Role.ADMIN


async def test_the_access_token_went_to_a_userinfo_endpoint_without_tls() -> None:
    """All other endpoints were checked."""
    used = Provider(settings("https://idp.example"), REDIRECT)
    metadata, tokens = {"userinfo_endpoint": "http://192.0.2.1/userinfo"}, {"access_token": "secret"}
    with pytest.raises(SignInRefused, match="userinfo_endpoint cannot be used"):
        await used._with_claim(metadata, tokens, {"sub": "1"}, "groups")


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    """The clock of this provider is an hour late."""
    with provider(tmp_path, REDIRECT, LATE_S="3600") as issuer, pytest.raises(SignInRefused, match="not valid"):
        await whole(Provider(settings(issuer), REDIRECT, SECRET), "ann")


async def test_a_wrong_secret_and_a_wrong_issuer_are_refused(tmp_path: Path) -> None:
    """The issuer is compared as it is written."""
    with provider(tmp_path, REDIRECT) as issuer:
        with pytest.raises(SignInRefused, match="refused the request"):
            await whole(Provider(settings(issuer), REDIRECT, "another secret"), "ann")
        with pytest.raises(SignInRefused, match="issuer differs from"):
            other = Provider(settings(issuer + "/"), REDIRECT, SECRET)
            await other.authorization_url(other.begin("/"))


ISSUER = "https://login.example.org"


def test_a_session_outlived_the_removal_of_its_group(tmp_path: Path) -> None:
    """If the members of another group had the same rights."""
    ops, interns = ({"group": name, "role": "admin"} for name in ("ops", "interns"))
    before = Provider(settings(ISSUER, roles=[interns, ops]), REDIRECT)
    with closing(ConsoleStore(Database.file(tmp_path / "console.sqlite"))) as store:
        sessions = Sessions(store, SessionLimits(60, 600))
        made = before._person({"sub": "1", "groups": ["interns"]})
        found = sessions.find(sessions.begin(made, "192.0.2.1", ""))
        old = sessions.find(sessions.begin(replace(made, group=""), "192.0.2.1", ""))  # of an earlier version
    assert found is not None and found.person == made and before.grants(found.person)
    assert old is not None and not before.grants(old.person)
    assert not Provider(settings(ISSUER, roles=[ops]), REDIRECT).grants(found.person)


@cache
def keys() -> tuple[RSAKey, RSAKey]:
    """The provider's, and somebody else's."""
    return RSAKey.generate_key(2048, {"kid": "1"}), RSAKey.generate_key(2048, {"kid": "1"})


def token(header: dict[str, Any] | None = None, key: Any = None, **claims: Any) -> str:
    """A right one; every claim can be changed, or left out with None."""
    now = int(time.time())
    right = {"iss": ISSUER, "aud": "console", "sub": "ann", "exp": now + 60, "iat": now, "nonce": "right"}
    shown = {name: value for name, value in {**right, **claims}.items() if value is not None}
    used = {"alg": "RS256", "kid": "1", **(header or {})}
    return jwt.encode(used, shown, key or keys()[0], algorithms=["RS256"])


def with_algorithm(name: str, key: bytes = b"") -> str:
    """Signed with a shared secret, or not at all."""
    head = base64.urlsafe_b64encode(json.dumps({"alg": name, "kid": "1"}).encode()).rstrip(b"=")
    text = head + b"." + token().split(".")[1].encode()
    signature = base64.urlsafe_b64encode(hmac.digest(key, text, "sha256")).rstrip(b"=") if key else b""
    return (text + b"." + signature).decode()


FORGED = {
    "another nonce": lambda: token(nonce="wrong"),
    "no nonce": lambda: token(nonce=None),
    "another audience": lambda: token(aud="another"),
    "several audiences": lambda: token(aud=["console", "another"]),
    "no audience": lambda: token(aud=None),
    "another issuer": lambda: token(iss="https://evil.example"),
    "no issuer": lambda: token(iss=None),
    "expired": lambda: token(exp=int(time.time()) - 100),
    "no end": lambda: token(exp=None),
    "no beginning": lambda: token(iat=None),
    "nobody": lambda: token(sub=None),
    "another party": lambda: token(azp="another"),
    "another key": lambda: token(key=keys()[1]),
    "an unknown key": lambda: token({"kid": "2"}, keys()[1]),
    "from the future": lambda: token(iat=int(time.time()) + 3600),
    "a public key as secret": lambda: with_algorithm("HS256", keys()[0].as_pem(private=False)),
    "no signature": lambda: with_algorithm("none"),
    "no token": lambda: "x.y.z",
    "empty": lambda: "",
}


@pytest.mark.parametrize("kind", FORGED)
async def test_forged_tokens_are_refused(kind: str) -> None:
    """Wrong claims, wrong keys, no signature."""
    used = Provider(settings(ISSUER), REDIRECT, SECRET)
    public = RSAKey.import_key(keys()[0].as_pem(private=False), {"kid": "1"})
    used._keys = (time.monotonic(), KeySet([public]))
    assert (await used._verified({}, {"id_token": token()}, "right"))["sub"] == "ann"
    with pytest.raises(SignInRefused):
        await used._verified({}, {"id_token": FORGED[kind]()}, "right")


@pytest.mark.parametrize("moment", ["\xb2", "\u0661", "9" * 5000, "", "-1", "1e3"])
def test_a_cookie_with_odd_digits_was_an_unexpected_error(moment: str) -> None:
    """Anyone could fill the log with it: to Python, a superscript two is a digit, but not a number."""
    used = Provider(settings(ISSUER), REDIRECT)
    name, _, rest = used.begin("/").cookie.split(".")
    odd = f"{name}.{moment}.{rest}"
    with pytest.raises(SignInRefused, match="not started"):
        used.taken(odd, used._derived(odd, "/").state)


def test_a_sign_in_that_takes_too_long_begins_again() -> None:
    """Ten minutes."""
    used = Provider(settings(ISSUER), REDIRECT)
    fresh = used.begin("/")
    name, begun_at, rest = fresh.cookie.split(".")
    old = f"{name}.{int(begun_at) - LASTS_S - 1:.0f}.{rest}"
    with pytest.raises(SignInRefused, match="too long"):
        used.taken(old, used._derived(old, "/").state)
    assert used.taken(fresh.cookie, fresh.state) == fresh
    with pytest.raises(SignInRefused, match="already been used"):
        used.taken(fresh.cookie, fresh.state)


@contextmanager
def odd_provider(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Answers every request like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def provider_of_strangers() -> Iterator[tuple[str, list[str]]]:
    """Knows none of the codes that it is asked about; yields the issuer, and the paths of the requests for a token."""
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        content: dict[str, str] = {"error": "invalid_grant"}
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if handler.command == "POST":
            asked.append(handler.path)
        else:
            own = f"http://{handler.headers['Host']}"
            content = {"issuer": own, "authorization_endpoint": f"{own}/auth"}
            content |= {"token_endpoint": f"{own}/token", "jwks_uri": f"{own}/keys"}
        handler.send_response(400 if handler.command == "POST" else 200)
        handler.end_headers()
        handler.wfile.write(json.dumps(content).encode())

    with odd_provider(answer) as issuer:
        yield issuer, asked


def guess(browser: Browser) -> int:
    """Begin, and return with a code that is made up, as a stranger can. The status of the answer."""
    state = parse_qs(urlsplit(browser.get("/sign-in/provider").target).query)["state"][0]
    return browser.get(f"/sign-in/back?state={state}&code=guess").status


def test_strangers_made_the_console_ask_the_provider_without_end(tmp_path: Path) -> None:
    """They were told that there were too many attempts, after the provider had been asked."""
    with provider_of_strangers() as (issuer, asked):
        oidc = {"issuer": issuer, "client_id": "public", "roles": ROLES}
        with world(tmp_path, {"oidc": oidc}) as made:
            browser = made.console.browser()
            answers = [guess(browser) for _ in range(MAX_PER_ADDRESS + 5)]
            assert answers == [403] * MAX_PER_ADDRESS + [429] * 5
            assert len(asked) == MAX_PER_ADDRESS
            made.console.add_user("ann")
            assert made.console.browser().sign_in("ann").status == 303  # passwords are counted separately


def test_pages_that_call_us_back_do_not_keep_people_from_signing_in(signing_in: tuple[World, str]) -> None:
    """Any page can have a browser do that, as often as it likes. It uses up the tries of this address."""
    world, _ = signing_in
    browser = world.console.browser()
    answers = [browser.get("/sign-in/back?state=x&code=guess").status for _ in range(MAX_PER_ADDRESS + 1)]
    assert answers[-1] == 429
    assert back(browser, agree(begun(browser), "ann")).status == 303


@pytest.mark.parametrize("is_refused", [True, False])
def test_only_failed_sign_ins_are_counted(signing_in: tuple[World, str], is_refused: bool) -> None:
    world, _ = signing_in
    with closing(world.console.store) as store, store.writing() as connection:
        connection.execute(delete(attempts))
    browser = world.console.browser()
    assert back(browser, agree(begun(browser), "zoe" if is_refused else "ann")).status == (403 if is_refused else 303)
    with closing(world.console.store) as store, store.reading() as connection:
        about = connection.execute(select(attempts.c.about)).scalars().all()
    assert about.count("from:provider 127.0.0.1") == is_refused


@pytest.mark.long
async def test_a_provider_that_never_ends_its_answer_is_not_waited_for() -> None:
    """A byte now and then; and who comes next is told at once."""
    stop = Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while not stop.wait(1):
                handler.wfile.write(b" ")

    with odd_provider(trickle) as issuer:
        used = Provider(settings(issuer), REDIRECT)
        async with asyncio.timeout(60):
            for said in ("cannot be reached", "at the moment"):
                with pytest.raises(SignInRefused, match=said):
                    await used.authorization_url(used.begin("/"))
        stop.set()


async def test_a_secret_in_clear_text_went_through_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a provider on this machine; nobody answers at this proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    def greet(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"{}")

    with odd_provider(greet) as issuer:
        assert await Provider(settings(issuer), REDIRECT, SECRET)._json("GET", issuer) == {}


async def test_a_provider_that_answers_with_deep_nesting_is_refused() -> None:
    """Not an unexpected error."""

    def nested(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"[" * 200_000)

    with odd_provider(nested) as issuer, pytest.raises(SignInRefused):
        used = Provider(settings(issuer), REDIRECT)
        await used.authorization_url(used.begin("/"))
