"""The names of the rules that decide on mail: `rule=` in the log, and in the facts of a quarantined mail.

A name is the place in the configuration where an operator would change the decision. Where nothing there decides
(the next hop refuses the mail, its content cannot be passed on), it is one of the fixed words below. Names are an
interface: `docs/reference/log.md` has every one of them, and a test compares it with `DOCUMENTED`.
"""

from __future__ import annotations

# Not from the configuration.
NEXT_HOP = "next_hop"
QUARANTINE_FAILED = "quarantine_failed"
INTERNAL_ERROR = "internal_error"
RELEASED = "released"
RELOADED = "reloaded"
SPOOL = "spool"
CANNOT_HOLD = "cannot_hold"
LINE_ENDS = "content.line_ends"
FIRST_LINE = "content.first_line"
OUR_FIELDS = "content.our_fields"
CLIENT = "content.client"
LOSSY = "listeners.hooks.lossy_content"
CONTENT = "content"
RECIPIENT_DOMAIN = "recipient_domain"
WITHOUT_COPY = "lists.without_copy"
EXHAUSTED = "limits.max_bytes_in_processing"
TOO_LARGE = "limits.max_message_size"
TRUSTED_CLIENTS = "listeners.trusted_clients"
HOOKS_TOKEN = "listeners.hooks.token_file"  # noqa: S105 - the name of a key
CLIENT_GONE = "client_gone"
PERSONAL_BLOCK = "personal_lists.block"
PERSONAL_ALLOW = "personal_lists.allow"

DOCUMENTED = {
    "policy.KEY": "the general policy applied, or the default of that key",
    "listeners.NAME.policy.KEY": "the listener's policy applied",
    "tenants.UID.policy.KEY": "the tenant's policy applied",
    "profiles.NAME.KEY": "the policy of the listener's profile applied",
    "listeners.NAME.refuse_ambiguous_mime": "the structure of the mail is ambiguous",
    "lists.NAME": "an entry of this list matched before the scan",
    WITHOUT_COPY: "a list that must be enforced has no local copy yet",
    PERSONAL_BLOCK: "the recipient has blocked the sender",
    PERSONAL_ALLOW: "the recipient has allowed the sender",
    "limits.NAME": "the mail exceeds a limit, or there is no room for it",
    TRUSTED_CLIENTS: "the client is not one of the listener's `trusted_clients`; only in the history",
    HOOKS_TOKEN: "the client did not send the listener's token; only in the history",
    CLIENT_GONE: "the client disconnected, or was too slow, before all of the content was sent; only in the history",
    RECIPIENT_DOMAIN: "the recipient's domain is uncertain, and a tenant, a route or a list depends on it",
    RELEASED: "the mail was released from the quarantine, so it was not scanned again",
    NEXT_HOP: "the next hop refused the mail, or could not be reached",
    QUARANTINE_FAILED: "the mail could not be stored in the quarantine",
    SPOOL: "the content could not be written to the spool",
    CANNOT_HOLD: "the policy is to hold the mail, but the mail server does not support holding mail",
    LINE_ENDS: "the content contains a NUL, or a CR or LF that is not part of a line ending",
    FIRST_LINE: "the first line would continue a header field that is added above it",
    OUR_FIELDS: "the mail has header fields that only the bridge may write, and they cannot be removed",
    CLIENT: "the header section names two clients",
    LOSSY: "the mail server sent a copy in which bytes are missing or replaced",
    CONTENT: "the content could not be accepted for another reason; `reply=` shows it",
    RELOADED: "a reload during the transfer assigned the recipients to different tenants",
    INTERNAL_ERROR: "an unexpected error occurred; `why=` has its text",
}


def of_policy(key: str) -> str:
    return f"policy.{key}"


def of_listener(name: str, key: str) -> str:
    return f"listeners.{name}.{of_policy(key)}"


def of_tenant(uid: str, key: str) -> str:
    return f"tenants.{uid}.{of_policy(key)}"


def of_profile(name: str, key: str) -> str:
    return f"profiles.{name}.{key}"


def of_ambiguity(listener: str) -> str:
    return f"listeners.{listener}.refuse_ambiguous_mime"


def of_list(name: str) -> str:
    return f"lists.{name}"


def of_limit(name: str) -> str:
    """`name` is the label of `scanbridge_limits_hit_total`."""
    return f"limits.{name}"
