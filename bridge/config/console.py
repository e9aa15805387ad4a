"""The web console: where it answers, how people sign in, and how long their sessions last.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from bridge.config.fields import CA_FILE, FILE_LOOKUP, AddressField, Network, OnlyTenants, SecretFile, Section, base_url
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration

RoleName = Literal["viewer", "releaser", "admin"]


class OidcRole(Section):
    group: str = Field(min_length=1, max_length=200, description="A value of the group claim.")
    role: RoleName = Field(description="What members of the group may do.")
    tenants: OnlyTenants = Field(None, description="Members see only the mail of these tenants. Default: all mail.")


class Oidc(Section):
    issuer: str = Field(description="The provider's issuer URL, as in its discovery document.")
    client_id: str = Field(min_length=1, max_length=200, description="The console's client ID at the provider.")
    client_secret_file: SecretFile | None = Field(
        None, description=f"File that contains the client secret; not needed for a public client. {FILE_LOOKUP}"
    )
    ca_file: str | None = Field(None, description=CA_FILE)
    scopes: list[str] = Field(
        ["openid", "profile", "email"], description="Scopes to request; `openid` is always included."
    )
    group_claim: str = Field(
        "groups",
        min_length=1,
        max_length=100,
        description="The claim of the ID token that contains the person's groups.",
    )
    roles: list[OidcRole] = Field(
        min_length=1,
        description="Groups and what their members may do. The first entry that matches applies; a person in none "
        "of these groups is refused.",
    )
    label: str = Field(
        "single sign-on", min_length=1, max_length=60, description="Label of the button on the sign-in page."
    )

    @field_validator("issuer")
    @classmethod
    def _issuer(cls, url: str) -> str:
        base_url(url, False)
        return url  # it is compared as written, also with a slash at its end

    @field_validator("scopes")
    @classmethod
    def _scopes(cls, scopes: list[str]) -> list[str]:
        return scopes if "openid" in scopes else ["openid", *scopes]


class Reached:
    """Pages that are reached at a local address or, behind a reverse proxy, at a URL."""

    address: Endpoint
    public_url: str | None

    @property
    def base(self) -> str:
        """The URL of the first page, without a slash at its end."""
        return self.public_url or f"http://{self.address}"

    @property
    def root_path(self) -> str:
        """The path of `public_url`, without a slash at its end."""
        return urlsplit(self.public_url).path.rstrip("/") if self.public_url else ""

    @property
    def origins(self) -> frozenset[str]:
        """Where our own pages come from, as browsers write it in Origin."""
        if self.public_url:
            parts = urlsplit(self.public_url)
            usual = {"https": ":443", "http": ":80"}[parts.scheme]  # browsers leave it out
            return frozenset({f"{parts.scheme}://{parts.netloc.removesuffix(usual)}".lower()})
        names = {f"[{name}]" if ":" in name else name for name in (self.address.host, "localhost")}
        port = "" if self.address.port == 80 else f":{self.address.port}"
        return frozenset(f"http://{name}{port}" for name in names)


class Console(Reached, Section):
    address: AddressField = Field(Endpoint("127.0.0.1", 9083), description="Where `scanbridge console` listens.")
    public_url: str | None = Field(
        None,
        validate_default=True,
        description="The URL that people type, if there is a reverse proxy in front of the console: "
        "`https://mail.example.org/scanbridge/`. The proxy may pass on the path of this URL or remove it. Requests for "
        "another host and forms from another origin are refused. Required if the address is not a loopback address.",
    )
    trusted_proxies: list[Network] = Field(
        ["127.0.0.0/8", "::1/128"],
        description="Networks of reverse proxies whose X-Forwarded-For is trusted if `public_url` is set.",
    )
    session_idle: Duration = Field(3600.0, ge=60, description="A session ends after this period of inactivity.")
    session_max: Duration = Field(
        12 * 3600.0, ge=60, description="A session ends after this time even if it is in use."
    )
    undo_period: Duration = Field(
        10.0,
        ge=1,
        le=60,
        description="How long an action on mail, or a change to a list, is delayed so that it can be undone.",
    )
    form_timeout: Duration = Field(
        20.0,
        ge=1,
        le=300,
        description="Maximum time to receive a form without a file; one that takes longer is refused.",
    )
    audit_retention: Duration = Field(365 * 86400.0, ge=86400, description="How long the audit log is kept.")
    report_to: str | None = Field(
        None,
        pattern=r"^[^\s@<>]+@[^\s@<>]+$",
        max_length=254,
        description="Mail address to which reported mail is sent, if `feedback.report_to` is not set.",
    )
    oidc: Oidc | None = Field(
        None,
        description="Sign-in through an OpenID Connect provider, in addition to the users of "
        "`scanbridge console user`.",
    )

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        return check_public_url(url, info.data.get("address"))


def check_public_url(url: str | None, address: Endpoint | None) -> str | None:
    """Without a slash at its end. Raises ValueError."""
    if url is None:
        if address is not None and (address.path or address.systemd):
            raise ValueError(f"{address} is for a reverse proxy: set this key to the URL at which people reach it")
        if address is not None and not address.is_local:
            raise ValueError(
                f"{address} can be reached from other machines, and browsers keep the cookies of these pages only over "
                "HTTPS: put a reverse proxy with TLS in front, and write its https:// URL here"
            )
        return None
    base_url(url, False)  # https, or http on loopback
    return url.rstrip("/")
