"""One entry of `listeners`: where a mail server reaches us, what it speaks, and whom we trust there.

What concerns several listeners, such as two with the same address, is checked by `model`. If this file is wrong,
strangers may send mail through us, or the mail server in front does not wait as long as we think.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bridge.config.fields import AddressField, Network, Section
from bridge.config.hooks import Hooks
from bridge.config.lists import DoorLists
from bridge.config.mail_server_profiles import DEFAULT_PROFILE, PROFILES, kind_of
from bridge.config.policy import Policy
from bridge.runtime import units
from bridge.runtime.suggestion import did_you_mean
from bridge.runtime.units import Duration


class Tls(Section):
    cert_file: str = Field(description="Certificate chain (PEM).")
    key_file: str = Field(description="Private key of `cert_file` (PEM).")
    required: bool = Field(False, description="Require STARTTLS: MAIL is refused with 530 until TLS is in use.")


def _no_default(schema: dict[str, Any]) -> None:
    """The default depends on other keys, so the schema for editors must not state one."""
    schema.pop("default", None)


class Listener(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", description="Name of the listener in logs and metrics.")
    protocol: Literal["smtp", "lmtp", "milter", "mta-hooks"] = Field(
        "smtp",
        description="Protocol that the mail server uses. [`mta-hooks`](../operate/mta-hooks.md) is experimental.",
    )
    address: AddressField = Field(description="Where to listen: host:port, [IPv6]:port, unix:/path or systemd:NAME.")
    profile: str = Field(
        "",
        json_schema_extra=_no_default,
        description="Profile of the mail server in front of the bridge. It sets the defaults of `deadline` and "
        "`policy`. One of "
        + ", ".join(f"`{p}`" for p in PROFILES)
        + ". Default: `postfix-proxy` for SMTP and LMTP, `postfix-milter` for milter, `mta-hooks` for MTA Hooks.",
    )
    deadline: Duration = Field(
        0.0,
        json_schema_extra=_no_default,
        description="Maximum time from the end of a mail's content to the reply. Default: set by the profile.",
    )
    trusted_clients: list[Network] = Field(
        [],
        validate_default=True,
        json_schema_extra=_no_default,
        description="Networks of the mail servers that may send mail through the bridge. Their XFORWARD and XCLIENT "
        "commands are trusted. Default: this machine. Required if the address is not a loopback address.",
    )
    hooks: Hooks | None = Field(None, validate_default=True, description="Required for MTA Hooks.")
    tls: Tls | None = Field(
        None,
        validate_default=True,
        description="Offer STARTTLS with this certificate or, on an MTA Hooks listener, use HTTPS with it.",
    )
    proxy_protocol: bool = Field(False, description="Expect a PROXY protocol header (v1 or v2) on every connection.")
    client_header: str | None = Field(
        None,
        pattern=r"^[Xx]-[A-Za-z0-9-]{1,60}$",
        description="Header field in which a mail server without XFORWARD reports its client at the top of each mail: "
        "`X-Scanbridge-Client: ADDR=192.0.2.7 HELO=mx.example.org`. Only the topmost field of this "
        "name is trusted, and all of them are removed. The mail server must add it to every mail: see "
        "[the client's address](../operate/client-address.md).",
    )
    refuse_ambiguous_mime: bool = Field(
        False,
        description="Refuse mail, with 554 5.6.0 and without a scan, if mail programs may interpret its MIME "
        "structure in different ways. This applies only to [reasons](../operate/service.md#ambiguous-mail) with a "
        "score of 8 or 2, and to structures that are too large to be read completely. Some legitimate mail has such a "
        "structure; `mode: shadow` shows what would be refused.",
    )
    hide_extensions: list[Literal["8BITMIME", "DSN", "PRDR", "SMTPUTF8"]] = Field(
        [],
        description="ESMTP extensions that are neither announced nor accepted. List those that the next hop "
        "lacks: the mail server in front of the bridge then converts the mail (8BITMIME), reports its delivery (DSN) "
        "or refuses it (SMTPUTF8) itself.",
    )
    unix_mode: str = Field("0660", pattern=r"^0[0-7]{3}$", description="Permissions of the unix socket.")
    unix_owner: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        description="Owner of the unix socket, `user` or `user:group`. Default: the user that scanbridge runs as. "
        "Requires the privilege to change owners.",
    )
    policy: Policy = Field(Policy(), description="Overrides of the general `policy` for this listener.")
    lists: DoorLists | None = Field(None, description="Lists that are enforced before a mail's content is received.")
    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow`: mail is scanned and relayed; what `enforce` would have done is only logged and counted.",
    )
    shadow_percent: float = Field(
        0.0, ge=0, le=100, description="With `mode: enforce`, the percentage of mail that is treated as in shadow mode."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        """Fill in the profile, and the profile's deadline."""
        if not isinstance(value, dict):
            return value
        name = value.get("profile") or DEFAULT_PROFILE.get(value.get("protocol", "smtp"), "")
        if name not in PROFILES:
            return value
        return {"deadline": units.show_duration(PROFILES[name].deadline_s), **value, "profile": name}

    @field_validator("profile")
    @classmethod
    def _profile(cls, name: str, info: ValidationInfo) -> str:
        profile, protocol = PROFILES.get(name), info.data.get("protocol", "smtp")
        if profile is None:
            raise ValueError(
                f"unknown profile; available profiles: {', '.join(PROFILES)}{did_you_mean(name, PROFILES)}"
            )
        if profile.protocol != kind_of(protocol):
            fitting = ", ".join(other for other in PROFILES if PROFILES[other].protocol == kind_of(protocol))
            raise ValueError(
                f"{name} is a profile for {profile.protocol}, but this listener speaks {protocol}; "
                f"profiles for {protocol}: {fitting}"
            )
        return name

    @field_validator("tls", "proxy_protocol", "client_header", "hide_extensions")
    @classmethod
    def _not_for_milter(cls, value: Tls | bool | str | list[str] | None, info: ValidationInfo) -> Any:
        protocol, is_tls = info.data.get("protocol"), info.field_name == "tls"
        if value and protocol == "milter":
            raise ValueError("a milter listener cannot have tls, proxy_protocol, client_header or hide_extensions")
        if value and protocol == "mta-hooks" and not is_tls:
            raise ValueError("an mta-hooks listener cannot have proxy_protocol, client_header or hide_extensions")
        address = info.data.get("address")
        is_plain = not value and protocol == "mta-hooks" and is_tls
        if is_plain and address is not None and not (address.is_local or address.systemd):
            raise ValueError(
                f"{address} can be reached from other machines, so the token and the mail must be encrypted: set tls"
            )
        return value

    @field_validator("hooks")
    @classmethod
    def _for_hooks(cls, hooks: Hooks | None, info: ValidationInfo) -> Hooks | None:
        speaks = info.data.get("protocol") == "mta-hooks"
        if speaks and hooks is None:
            raise ValueError("an mta-hooks listener needs a token: set hooks.token_file")
        if hooks is not None and not speaks and "protocol" in info.data:
            raise ValueError("only an mta-hooks listener has hooks")
        return hooks

    @property
    def hands_on(self) -> bool:
        """Whether we pass the mail to a next hop; otherwise the mail server in front delivers it."""
        return self.protocol in ("smtp", "lmtp")

    @field_validator("lists")
    @classmethod
    def _before_the_queue(cls, lists: DoorLists | None, info: ValidationInfo) -> DoorLists | None:
        """After the queue, a refusal becomes a bounce to a sender that may be forged."""
        profile = PROFILES.get(info.data.get("profile", ""))
        if lists and profile and profile.is_after_queue and (lists.block or lists.block_recipients):
            raise ValueError(
                f"a refusal would become a bounce, because {info.data['profile']} runs after the queue; "
                "enforce the lists at a listener before the queue, or only in the scan"
            )
        return lists

    @field_validator("deadline")
    @classmethod
    def _deadline(cls, value: float) -> float:
        if value < 1.0:
            raise ValueError("must be at least 1s")
        return value

    @field_validator("trusted_clients")
    @classmethod
    def _trusted(cls, networks: list[str], info: ValidationInfo) -> list[str]:
        address = info.data.get("address")
        if not networks and address is not None and not (address.is_local or address.systemd):
            raise ValueError(
                f"{address} can be reached from other machines: list the mail servers that may use it, "
                "or listen on 127.0.0.1"
            )
        return networks or ["127.0.0.0/8", "::1/128"]
