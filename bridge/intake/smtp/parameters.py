"""The ESMTP parameters of MAIL and RCPT: which ones we accept, and with which values.

Pure functions; accepted parameters go to the next hop in their original case. If this is wrong, the next hop gets a
parameter that it refuses or that means something else there.
"""

from __future__ import annotations

from bridge.intake.smtp.paths import Path
from bridge.mail.reply import Reply

_EXTENSION_OF = {
    **dict.fromkeys(("RET", "ENVID", "NOTIFY", "ORCPT"), "DSN"),
    "BODY": "8BITMIME",
    "SMTPUTF8": "SMTPUTF8",
    "PRDR": "PRDR",
}
_NO_MAIL_PARAMETER = Reply(555, "5.5.4", "MAIL FROM parameters not recognized or not implemented")
_NO_RCPT_PARAMETER = Reply(555, "5.5.4", "RCPT TO parameters not recognized or not implemented")
TOO_LARGE = Reply(552, "5.3.4", "Error: message size exceeds fixed maximum message size")


def refuse_of_mail(path: Path, hidden: frozenset[str], max_size: int | None, takes_utf8: bool) -> Reply | None:
    """The refusal of MAIL's parameters, or None. `hidden`: extensions that we do not offer."""
    for name, value in path.params:
        match name:
            case _ if hidden and _EXTENSION_OF.get(name) in hidden:
                return _NO_MAIL_PARAMETER
            case "SIZE" if value is None or not (value.isascii() and value.isdigit()) or len(value) > 20:
                return Reply(501, "5.5.4", "Syntax: MAIL FROM: <address> [SP <mail-parameters>]")
            case "SIZE" if max_size and int(value or 0) > max_size:
                return TOO_LARGE
            case "BODY" if (value or "").upper() not in ("7BIT", "8BITMIME"):
                return Reply(501, "5.5.4", "Error: BODY can only be one of 7BIT, 8BITMIME")
            case "SMTPUTF8" if value is not None:
                return Reply(501, "5.5.4", "Error: SMTPUTF8 takes no arguments")
            case "SMTPUTF8" if not takes_utf8:
                return Reply(501, "5.5.4", "Error: SMTPUTF8 disabled")
            case "RET" if (value or "").upper() not in ("FULL", "HDRS"):
                return Reply(501, "5.5.4", "Error: RET can only be one of FULL, HDRS")
            case "ENVID" | "AUTH" if value is None:
                return Reply(501, "5.5.4", f"Error: {name} needs a value")
            case "PRDR" if value is not None:
                return Reply(501, "5.5.4", "Error: PRDR takes no arguments")
            case "SIZE" | "BODY" | "SMTPUTF8" | "RET" | "ENVID" | "AUTH" | "PRDR":
                continue
            case _:
                return _NO_MAIL_PARAMETER
    return None


def shortened(path: Path, limit: int) -> Path | None:
    """The path without ENVID and ORCPT, which only appear in reports; None if that is still too long.

    RFC 3461 allows 100 and 500 characters, but Postfix takes any number.
    """
    short = path._replace(params=tuple([param for param in path.params if param[0] not in ("ENVID", "ORCPT")]))
    return short if len(" ".join((short.address, *short.as_sent)).encode()) <= limit else None


def declared_size(path: Path) -> int:
    """The value of SIZE=, after `refuse_of_mail`; 0 without one."""
    return next((int(value or 0) for name, value in path.params if name == "SIZE"), 0)


def refuse_of_rcpt(path: Path, hidden: frozenset[str]) -> Reply | None:
    """The refusal of RCPT's parameters, or None."""
    for name, value in path.params:
        if name not in ("NOTIFY", "ORCPT") or "DSN" in hidden:
            return _NO_RCPT_PARAMETER
        if value is None:
            return Reply(501, "5.5.4", f"Error: {name} needs a value")
    return None
