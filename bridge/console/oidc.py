"""Sign-in with an OpenID Connect provider: the code flow with PKCE, state and nonce.

What a sign-in must remember is in a cookie that lasts ten minutes: a random value, from which state, nonce and verifier
are derived with a key that only this process has. So nothing is stored before the sign-in is complete. Each value is
used once. Authlib checks the ID token; whatever it does not accept is refused. If this is wrong, people can sign in as
someone else. A person is the issuer and the subject; the name is only shown.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any
from urllib.parse import urlencode

import httpx2
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from bridge.config.console import Oidc, OidcRole
from bridge.config.fields import base_url
from bridge.console.checks import int_or
from bridge.console.database import MAX_GROUP
from bridge.console.roles import Person, Role, Tenants
from bridge.console.tokens import is_token, new_token
from bridge.errors import BridgeError
from bridge.runtime.no_cookies import no_cookies
from bridge.runtime.visible_text import visible

log = logging.getLogger(__name__)

# Public-key signatures only: with a shared secret, anyone who can verify a token can also create one.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
LASTS_S = 600.0
_LEEWAY_S = 30
_TIMEOUT_S = 10.0  # for one whole answer
_METADATA_S = 3600.0
_AGAIN_S = 5.0  # a provider that failed is asked again after this time
_KEYS_S = 60.0  # unknown keys are requested at most this often
_MAX_ANSWER = 1024 * 1024
_PLAIN = {"Accept-Encoding": "identity"}  # a small answer must not expand to a large one
_MAX_USED = 10_000
_MAX_SUBJECT = 255  # characters, by OpenID Connect Core 2
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class SignInRefused(BridgeError):
    """The text is for the person; the log has the details."""


@dataclass(frozen=True, slots=True)
class Begun:
    """One sign-in that has begun."""

    cookie: str
    state: str
    nonce: str
    verifier: str
    following: str  # the page that was asked for


@dataclass(slots=True)
class Provider:
    settings: Oidc
    redirect_uri: str
    secret: str | None = field(default=None, repr=False)
    tls: SSLContext | bool = True
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _used: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _metadata: tuple[float, dict[str, Any]] | None = None
    _discovering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _not_before: float = 0.0  # on the monotonic clock
    _keys: tuple[float, KeySet] | None = None

    def grants(self, person: Person) -> bool:
        """Whether a person of this provider can still have these rights: the configuration may have changed."""
        rights = {(row.group[:MAX_GROUP], *_rights(row)) for row in self.settings.roles}
        return person.provider == self.settings.issuer and (person.group, person.role, person.tenants) in rights

    # Beginning

    def begin(self, following: str) -> Begun:
        text = base64.urlsafe_b64encode(following.encode()).decode().rstrip("=")
        return self._derived(f"{new_token()}.{int(time.time())}.{text}", following)

    async def authorization_url(self, begun: Begun) -> str:
        """Where the browser goes. Raises SignInRefused."""
        metadata = await self._discovered()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": create_s256_code_challenge(begun.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = str(metadata["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    # The return

    async def finish(self, begun: Begun, answer: Mapping[str, str]) -> Person:
        """Who it is. Asks the provider, so count the attempt before. Raises SignInRefused."""
        return self._person(await self._answered(begun, answer, self.settings.group_claim))

    async def claims(self, begun: Begun, answer: Mapping[str, str]) -> dict[str, Any]:
        """What the provider says about the person, with `email` if it is given. Like `finish`. Raises SignInRefused."""
        return await self._answered(begun, answer, "email")

    async def _answered(self, begun: Begun, answer: Mapping[str, str], needed: str) -> dict[str, Any]:
        metadata = await self._discovered()
        self._check_answer(answer, metadata)
        tokens = await self._tokens(metadata, answer["code"], begun.verifier)
        claims = await self._verified(metadata, tokens, begun.nonce)
        return await self._with_claim(metadata, tokens, claims, needed)

    def taken(self, cookie: str, state: str) -> Begun:
        """The sign-in that this answer belongs to; it can be taken only once. Raises SignInRefused."""
        token, _, rest = cookie.partition(".")
        begun_at, _, text = rest.partition(".")
        moment = int_or(begun_at, -1)
        if not is_token(token) or moment < 0 or len(cookie) > 2000:
            raise SignInRefused("This sign-in was not started in this browser. Start again.")
        if not 0 <= time.time() - moment <= LASTS_S:
            raise SignInRefused("The sign-in took too long. Start again.")
        try:
            following = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        except ValueError:
            following = "/"
        begun = self._derived(cookie, following)
        if not hmac.compare_digest(state.encode("utf-8", "replace"), begun.state.encode()):
            raise SignInRefused("The provider's answer does not belong to this sign-in. Start again.")
        if begun.state in self._used:
            raise SignInRefused("The provider's answer has already been used. Start again.")
        self._used[begun.state] = time.time()
        while len(self._used) > _MAX_USED:
            self._used.popitem(last=False)
        return begun

    def _check_answer(self, answer: Mapping[str, str], metadata: dict[str, Any]) -> None:
        if "error" in answer:
            raise SignInRefused(
                f"The provider says: {visible(answer.get('error_description') or answer['error'])[:200]}."
            )
        # RFC 9207: without it, an answer from one provider could be presented as another's.
        issuer, is_needed = answer.get("iss"), metadata.get("authorization_response_iss_parameter_supported") is True
        if (issuer is not None or is_needed) and issuer != self.settings.issuer:
            raise SignInRefused("The answer is from another provider.")
        if not answer.get("code"):
            raise SignInRefused("The provider's answer has no code.")

    async def _tokens(self, metadata: dict[str, Any], code: str, verifier: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
            "client_id": self.settings.client_id,
        }
        basic = None
        if self.secret is not None:
            methods = metadata.get("token_endpoint_auth_methods_supported")
            if not isinstance(methods, list) or "client_secret_basic" in methods:
                basic = (self.settings.client_id, self.secret)
            else:
                form["client_secret"] = self.secret
        tokens = await self._json("POST", str(metadata["token_endpoint"]), data=form, auth=basic)
        if not isinstance(tokens.get("id_token"), str):
            raise SignInRefused("The provider sent no ID token.")
        return tokens

    async def _verified(self, metadata: dict[str, Any], tokens: dict[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, if everything about it is right."""
        try:
            try:
                token = jwt.decode(tokens["id_token"], await self._key_set(metadata), algorithms=ALGORITHMS)
            except (JoseError, ValueError):  # perhaps the provider has new keys
                token = jwt.decode(tokens["id_token"], await self._key_set(metadata, fresh=True), algorithms=ALGORITHMS)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id},
                    "sub": {"essential": True},
                },
                params={
                    "nonce": nonce,
                    "client_id": self.settings.client_id,
                    "access_token": tokens.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError) as exc:
            log.warning("console: an ID token was refused: %s", visible(str(exc))[:300])
            raise SignInRefused("The provider's ID token is not valid; the console's log says why.") from exc
        return dict(claims)

    async def _with_claim(
        self, metadata: dict[str, Any], tokens: dict[str, Any], claims: dict[str, Any], needed: str
    ) -> dict[str, Any]:
        """Some providers give the groups, or the address, at their userinfo endpoint only."""
        endpoint, access = metadata.get("userinfo_endpoint"), tokens.get("access_token")
        if needed in claims or not isinstance(endpoint, str) or not isinstance(access, str):
            return claims
        _check_endpoint("userinfo_endpoint", endpoint)  # it gets the access token
        more = await self._json("GET", endpoint, headers={"Authorization": f"Bearer {access}"})
        if more.get("sub") != claims["sub"]:  # OpenID Connect Core 5.3.2
            raise SignInRefused("The provider's response refers to a different person.")
        return {**more, **claims}

    def _person(self, claims: dict[str, Any]) -> Person:
        given = claims.get(self.settings.group_claim)
        groups = (
            {given} if isinstance(given, str) else set(filter(_is_text, given)) if isinstance(given, list) else set()
        )
        subject = claims["sub"]
        if not _is_text(subject) or len(subject) > _MAX_SUBJECT or not subject.isprintable():
            raise SignInRefused("The provider's ID token does not say who you are.")
        name = next(
            (str(claims[key]) for key in ("preferred_username", "email", "sub") if _is_text(claims.get(key))), "unknown"
        )
        name = visible(name)[:100]
        for row in self.settings.roles:
            if row.group in groups:
                return Person(name, *_rights(row), self.settings.issuer, subject, row.group[:MAX_GROUP])
        log.warning("console: %s is not in any group that may sign in", name)
        raise SignInRefused(f"The provider signed you in as {name}, but none of your groups may use this console.")

    # The provider

    async def _discovered(self) -> dict[str, Any]:
        """Requested once for all waiting sign-ins, because anyone can start one."""
        async with self._discovering:
            if self._metadata is not None and time.monotonic() - self._metadata[0] < _METADATA_S:
                return self._metadata[1]
            if time.monotonic() < self._not_before:
                raise SignInRefused("The provider cannot be reached at the moment. Try again.")
            try:
                found = await self._discover()
            except SignInRefused:
                self._not_before = time.monotonic() + _AGAIN_S
                raise
            self._metadata = (time.monotonic(), found)
            return found

    async def _discover(self) -> dict[str, Any]:
        found = await self._json("GET", self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != self.settings.issuer:
            raise SignInRefused("The provider's issuer differs from console.oidc.issuer.")
        for name in _ENDPOINTS:
            _check_endpoint(name, str(found.get(name, "")))
        return found

    async def _key_set(self, metadata: dict[str, Any], *, fresh: bool = False) -> KeySet:
        age_s = None if self._keys is None else time.monotonic() - self._keys[0]
        if self._keys is not None and age_s is not None and age_s < (_KEYS_S if fresh else _METADATA_S):
            return self._keys[1]
        found = KeySet.import_key_set(await self._json("GET", str(metadata["jwks_uri"])))
        self._keys = (time.monotonic(), found)
        return found

    async def _json(self, method: str, url: str, **request: Any) -> dict[str, Any]:
        """Raises SignInRefused. Answers and secrets are not logged."""
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                httpx2.AsyncClient(
                    cookies=no_cookies(),
                    verify=self.tls,
                    timeout=_TIMEOUT_S,
                    follow_redirects=False,
                    headers=_PLAIN,
                    trust_env=url.startswith("https:"),  # otherwise, a proxy in the environment would read the secret
                ) as client,
                client.stream(method, url, **{k: v for k, v in request.items() if v is not None}) as response,
            ):
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise ValueError("the answer is compressed")
                body = b""
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > _MAX_ANSWER:
                        raise ValueError("the answer is too large")
            found = httpx2.Response(200, content=body).json()
            if response.status_code != 200 or not isinstance(found, dict):
                code = found.get("error") if isinstance(found, dict) else ""
                raise ValueError(f"status {response.status_code} {visible(str(code or ''))[:100]}")
            return found
        except (httpx2.HTTPError, ValueError, TimeoutError, RecursionError) as exc:
            log.warning(
                "console: request to the provider failed: %s: %s", url, visible(f"{type(exc).__name__}: {exc}")[:300]
            )
            raise SignInRefused(
                "The provider refused the request, or cannot be reached; the console's log says why."
            ) from exc

    def _derived(self, cookie: str, following: str) -> Begun:
        state, nonce, verifier = (
            hmac.new(self._key, f"{purpose}:{cookie}".encode(), hashlib.sha256).hexdigest()
            for purpose in ("state", "nonce", "verifier")
        )
        return Begun(cookie, state, nonce, verifier, following)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _check_endpoint(name: str, url: str) -> None:
    """Secrets are sent there, so it must be https:// or on this machine. Raises SignInRefused."""
    try:
        base_url(url.partition("?")[0], False)
    except ValueError as exc:
        raise SignInRefused(f"The provider's {name} cannot be used.") from exc


def _rights(row: OidcRole) -> tuple[Role, Tenants]:
    return Role.named(row.role), None if row.tenants is None else frozenset(row.tenants)
