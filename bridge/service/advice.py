"""What an operator should know about a valid configuration: it works, but probably not as intended.

`scanbridge service` prints it at start and logs it after a reload; `scanbridge service check` shows it without
starting the service. Each text begins with the file, line and key, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridge.service.abby_settings import SHORT_TOKEN, Permission
from bridge.service.analysis.decision import delivered_anyway
from bridge.service.config_files import Loaded, closest
from bridge.service.detection.phishing import known_signals

NOT_SCANNING = "scanning is disabled and /readyz fails"
_RESTORE = "restore the file, or create it with `scanSources: {restApi: {}}`"
_CREATE = "create one with `scanbridge service token`"


def advice(loaded: Loaded) -> list[str]:
    parts = (_scanning, _tokens, _address, _decisions, _signals)
    return [*loaded.warnings, *(text for part in parts for text in part(loaded))]


def _scanning(loaded: Loaded) -> Iterator[str]:
    if loaded.config.guard.scanSources.restApi is None:
        yield (
            f"{loaded.at('guard', 'scanSources')}: {NOT_SCANNING}: every scan is answered with 403, because restApi "
            f"is missing; {_RESTORE if 'guard' in loaded.absent else 'add `restApi: {}`'}"
        )


def _tokens(loaded: Loaded) -> Iterator[str]:
    tokens = loaded.config.abby.staticApiTokens
    if not tokens:
        yield (
            f"{loaded.at('abby', 'staticApiTokens')}: {NOT_SCANNING}: no token is configured, so every scan is "
            f"refused; {_CREATE}"
        )
    elif not any(token.may(Permission.SCAN) for token in tokens):
        yield (
            f"{loaded.at('abby', 'staticApiTokens')}: {NOT_SCANNING}: no token has the "
            f"`{Permission.SCAN}` permission, so every scan is answered with 403; add it to `permissions`"
        )
    for i, token in enumerate(tokens):
        if any(len(secret) < SHORT_TOKEN for secret in token.secrets):
            where = loaded.at("abby", "staticApiTokens", i)
            yield f"{where}: the token of {token.name} is too short to be safe; {_CREATE}"


def _address(loaded: Loaded) -> Iterator[str]:
    config = loaded.config
    if not config.listen.is_local and config.tls is None:
        yield (
            f"{loaded.at('listen')}: other machines can reach the service, and tokens are sent unencrypted; set tls, "
            "or use a TLS proxy"
        )


def _decisions(loaded: Loaded) -> Iterator[str]:
    for tag in delivered_anyway(loaded.config.decisions):
        yield (
            f"{loaded.at('decisions', 'rules')}: mail with the {tag} tag is delivered; `rules` replaces all default "
            f"rules, so add one for {tag}, or set only `scores`"
        )


def _signals(loaded: Loaded) -> Iterator[str]:
    phishing = loaded.config.analyzers.phishing
    known = known_signals() if phishing is not None and phishing.ignore else frozenset()
    for i, tag in enumerate(phishing.ignore if phishing is not None else ()):
        if tag not in known:
            similar = closest(tag, known)
            hint = f"did you mean {similar}?" if similar else "`scanbridge service explain FILE` shows their tags"
            yield f"{loaded.at('analyzers', 'phishing', 'ignore', i)}: no signal has the tag {tag!r:.80}; {hint}"
