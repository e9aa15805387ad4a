"""What the phishing model's answer counts for, by the profile that the operator chose.

Three tags say how it came out: `phishing:likely` at the threshold of the profile, `phishing:suspected` some way below
it, and `failed:phishing` if there was no answer.
"""

from __future__ import annotations

import os

from bridge.api.scanning import readable_reasons
from bridge.errors import ConfigError
from bridge.service.analysis.decision import INCOMPLETE
from bridge.service.analyzer_settings import Phishing
from bridge.service.detection import reasons
from bridge.service.detection.model import QUARANTINE_POINTS, BadModel, Model, model_at
from bridge.service.detection.phishing import Search, Suspicion

SUSPECTED_POINTS = 5.0
LIKELY, SUSPECTED = "phishing:likely", "phishing:suspected"


def search_of(settings: Phishing) -> Search:
    return Search(settings.model_path, _stamp(settings), tuple(settings.ignore))


def _stamp(settings: Phishing) -> int:
    """0 for the shipped model, and for a file that is missing: then `load_model` says so."""
    try:
        return os.stat(settings.model_path).st_mtime_ns if settings.model_path else 0  # noqa: PTH116
    except OSError:
        return 0


def load_model(settings: Phishing) -> Model:
    """Raises ConfigError."""
    try:
        return model_at(settings.model_path, _stamp(settings))
    except OSError as exc:
        raise ConfigError(f"cannot read the phishing model {settings.model_path}: {exc.strerror}") from exc
    except BadModel as exc:
        raise ConfigError(f"analyzers.phishing.model_file: {exc}") from exc


class Judgement:
    """Raises ConfigError if the model cannot be read."""

    def __init__(self, settings: Phishing) -> None:
        self._settings = settings
        self._model = load_model(settings)

    @property
    def weights(self) -> dict[str, float]:
        return self._model.weights

    def reasons(self, suspicion: Suspicion | None, tags: set[str]) -> tuple[str, ...]:
        """The reasons in words, only for mail that looks like phishing: for all mail, it would cost time and space."""
        if suspicion is None or tags.isdisjoint((LIKELY, SUSPECTED)):
            return ()
        return readable_reasons(reasons.sentences(suspicion.signals, self._model.weights))

    def points(self, suspicion: Suspicion | None, tags: set[str], shift: float = 0.0) -> float:
        """For the decision table; `shift` is what reports have changed. Adds a tag if there is a result."""
        if suspicion is None or suspicion.margin is None:
            if suspicion is not None and self._settings.required:
                tags.add(INCOMPLETE)
            return 0.0
        if not self._settings.use_model:
            return 0.0
        points = self._model.points(suspicion.margin + shift, self._settings.profile)
        if points >= QUARANTINE_POINTS:
            tags.add(LIKELY)
        elif points >= SUSPECTED_POINTS:
            tags.add(SUSPECTED)
        return points
