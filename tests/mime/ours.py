"""Our own reader, as the comparison calls it: everything that the inspection looks at in a mail, in one list."""

from __future__ import annotations

from collections.abc import Collection

from bridge.api.scanning import Decision
from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import Decisions
from tests.mime.reader import Found


def read(mail: bytes) -> list[Found] | None:
    """Every object found; None if the mail is held because it cannot be read completely."""
    seen: list[Found] = []

    def see(content: bytes, names: Collection[str], _is_opaque: bool, _type: str | None) -> None:
        seen.extend(Found(content, name) for name in names or [""])

    result = inspect(mail, Limits(), see)
    return None if _is_held(result) else seen


def _is_held(result: Inspection) -> bool:
    """A limit was reached, or the content is elsewhere and the default decision on that is not to deliver."""
    elsewhere = result.tags & {"mime:partial", "mime:external-body"}
    return bool(result.limits) or DecisionTable(Decisions()).decide(elsewhere).decision is not Decision.DELIVER


def tags(mail: bytes) -> frozenset[str]:
    """What the service concludes from the bytes alone; `held` if it cannot read the mail completely."""
    result = inspect(mail, Limits())
    return frozenset(result.tags | ({"held"} if _is_held(result) else set()))
