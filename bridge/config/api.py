"""Who may query the history over HTTP, and about whose mail.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from pydantic import Field, field_validator

from bridge.config.fields import FILE_LOOKUP, OnlyTenants, Section, refuse_twice


class ApiToken(Section):
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the token's user, for people who read this file.",
    )
    token_file: str = Field(description=f"File that contains the bearer token. {FILE_LOOKUP}")
    tenants: OnlyTenants = Field(
        None, description="The token's user sees only the mail of these tenants. Default: all mail."
    )


class Api(Section):
    tokens: list[ApiToken] = Field(
        [],
        description="Tokens that programs can use to [query the history over HTTP](../operate/history-over-http.md). "
        "If there are none, every request is refused.",
    )

    @field_validator("tokens")
    @classmethod
    def _names(cls, tokens: list[ApiToken]) -> list[ApiToken]:
        refuse_twice(
            "api.tokens",
            "name",
            (token.name for token in tokens),
            "two tokens are named {value}, {first} and this one: give one of them another name",
        )
        return tokens
