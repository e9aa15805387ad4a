"""An engine of your own: it finds "invoices" that are Windows programs."""

from typing import Any

from bridge.service.analysis.engine import Findings, Mail


class Invoices:
    def __init__(self, options: dict[str, Any]) -> None:
        """`options` are those of the configuration; an exception here keeps the service from starting."""
        self.word = options.get("word", "invoice")

    def analyze(self, mail: Mail) -> Findings:
        """Called for each mail, in a separate process. Any exception means that there is no answer."""
        for part in mail.parts():
            named = any(self.word in name.lower() for name in part.names)
            if named and part.content().startswith(b"MZ"):
                return Findings(frozenset({"invoice:program"}), score=8.0)
        return Findings()
