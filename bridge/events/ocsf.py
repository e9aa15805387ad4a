"""Events in the words of the Open Cybersecurity Schema Framework (OCSF), for receivers that speak it.

Mail becomes Email Activity (class 4009), a list Entity Management (3004), a scanner host Application Lifecycle (6002).
The tables below are the mapping, and the documentation prints them. What OCSF has no word for is in `unmapped`. Events
are converted from the JSON in the outbox, so both formats always say the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bridge import __version__
from bridge.events.event import TEST, EventType, ScannerState
from bridge.mail.action import Action

VERSION = "1.6.0"  # of the schema
SCAN = 3  # activity_id of Email Activity
INFORMATIONAL, LOW, MEDIUM, HIGH = 1, 2, 3, 4  # severity_id
SUCCESS, FAILURE = 1, 2  # status_id
ALLOWED, DENIED, MODIFIED = 1, 2, 4  # action_id
START, STOP, UPDATE, OTHER = 3, 4, 3, 99  # activity_id of the other classes

Event = dict[str, Any]
_REPORTED = "reported"

# Type -> class_uid, its name, category_uid, its name
CLASSES: dict[str, tuple[int, str, int, str]] = {
    EventType.DECIDED: (4009, "Email Activity", 4, "Network Activity"),
    EventType.REFUSED: (4009, "Email Activity", 4, "Network Activity"),
    EventType.QUARANTINED: (4009, "Email Activity", 4, "Network Activity"),
    EventType.RELEASED: (4009, "Email Activity", 4, "Network Activity"),
    EventType.REPORTED: (4009, "Email Activity", 4, "Network Activity"),
    EventType.LIST_CHANGED: (3004, "Entity Management", 3, "Identity & Access Management"),
    EventType.SCANNER_STATE: (6002, "Application Lifecycle", 6, "Application Activity"),
    TEST: (0, "Base Event", 0, "Uncategorized"),
}
# Our action -> action_id, disposition_id, its name
DISPOSITIONS: dict[str, tuple[int, int, str]] = {
    Action.RELAY: (ALLOWED, 1, "Allowed"),
    Action.REJECT: (DENIED, 25, "Rejected"),
    Action.DISCARD: (DENIED, 6, "Dropped"),
    Action.QUARANTINE: (DENIED, 3, "Quarantined"),
    Action.HOLD: (DENIED, 3, "Quarantined"),
    Action.TEMPFAIL: (DENIED, 14, "Delayed"),
    "cancelled": (OTHER, 16, "No Action"),
    "released": (MODIFIED, 9, "Restored"),
    _REPORTED: (OTHER, 99, _REPORTED),
}
_LIFECYCLE = {ScannerState.UP: START, ScannerState.DOWN: STOP}
# Our field -> where it is in Email Activity
EMAIL: dict[str, str] = {
    "id": "metadata.correlation_uid",
    "message_id": "email.message_uid",
    "sender": "from, email.from",
    "recipients": "to, email.to",
    "size": "email.size",
    "client_address": "src_endpoint.ip",
    "client_helo": "smtp_hello",
    "ggrid": "message_trace_uid",
    "action": "action_id, action (if 99), disposition_id, disposition",
    "rule": "firewall_rule.name",
    "reply": "status_code, status_detail",
}


def to_ocsf(body: bytes) -> bytes:
    """The same event as OCSF."""
    event: Event = json.loads(body)
    return json.dumps(convert(event), ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def convert(event: Event) -> Event:
    type_, data = event["type"], event["data"]
    class_uid, class_name, category_uid, category_name = CLASSES[type_]
    specific = _CONVERTERS[type_](data)
    activity = specific.pop("activity_id")
    return {
        "class_uid": class_uid,
        "class_name": class_name,
        "category_uid": category_uid,
        "category_name": category_name,
        "activity_id": activity,
        "type_uid": class_uid * 100 + activity,
        "time": round(datetime.fromisoformat(event["time"]).timestamp() * 1000),
        "metadata": {
            "version": VERSION,
            "uid": event["id"],
            "event_code": type_,
            **({"correlation_uid": data["id"]} if "id" in data else {}),
            "product": {"name": "scanbridge", "vendor_name": "scanbridge", "version": __version__},
            "profiles": ["security_control"] if class_uid == 4009 else [],
            "log_provider": event["source"],
        },
        **specific,
    }


def _mail(data: Event) -> Event:
    action = data.get("action", _REPORTED if "kind" in data else "released")
    action_id, disposition_id, disposition = DISPOSITIONS[action]
    addresses = {"to": data["recipients"], **({"from": data["sender"]} if data["sender"] else {})}
    found: Event = {
        "activity_id": SCAN,
        "severity_id": INFORMATIONAL if action_id in (ALLOWED, OTHER) else LOW,
        "direction_id": 0,  # we do not know which side of us is inside
        "email": addresses | _known(data, size="size", message_uid="message_id"),
        **addresses,
        "action_id": action_id,
        "disposition_id": disposition_id,
        "disposition": disposition,
        "status_id": SUCCESS if action_id in (ALLOWED, MODIFIED) or action == _REPORTED else FAILURE,
    }
    if action_id == OTHER:  # OCSF: then the name is our own word
        found["action"] = action
    found |= _known(data, smtp_hello="client_helo", message_trace_uid="ggrid")
    if "client_address" in data:
        found["src_endpoint"] = {"ip": data["client_address"]}
    if "rule" in data:
        found["firewall_rule"] = {"name": data["rule"]}
    if isinstance(reply := data.get("reply"), dict):
        found |= {"status_code": f"{reply['code']} {reply['status']}".strip(), "status_detail": reply["text"]}
    elif reply is not None:
        found["status_detail"] = reply
    found["unmapped"] = {key: value for key, value in data.items() if key not in EMAIL}
    return found


def _known(data: Event, **names: str) -> Event:
    """Those of our fields that the event has, by their OCSF names."""
    return {theirs: data[ours] for theirs, ours in names.items() if ours in data}


def _list(data: Event) -> Event:
    entity = {"name": data["list"], "type": "List", "type_id": OTHER, "data": data}
    return {"activity_id": UPDATE, "severity_id": INFORMATIONAL, "status_id": SUCCESS, "entity": entity}


def _scanner(data: Event) -> Event:
    state = ScannerState(data["state"])
    found = {
        "activity_id": _LIFECYCLE.get(state, OTHER),
        "severity_id": INFORMATIONAL if state is ScannerState.UP else HIGH,
        "status_id": SUCCESS if state is ScannerState.UP else FAILURE,
        "app": {"name": "scanner", "vendor_name": "scanner", "url_string": data["host"]},
        "unmapped": data,
    }
    if state not in _LIFECYCLE:
        found["activity_name"] = str(state)
    return found | _known(data, status_detail="problem")


def _test(data: Event) -> Event:
    named = {"activity_id": OTHER, "activity_name": TEST}
    return {**named, "severity_id": INFORMATIONAL, "message": "a test", "unmapped": data}


_CONVERTERS: dict[str, Callable[[Event], Event]] = {
    EventType.DECIDED: _mail,
    EventType.REFUSED: _mail,
    EventType.QUARANTINED: _mail,
    EventType.RELEASED: _mail,
    EventType.REPORTED: _mail,
    EventType.LIST_CHANGED: _list,
    EventType.SCANNER_STATE: _scanner,
    TEST: _test,
}
