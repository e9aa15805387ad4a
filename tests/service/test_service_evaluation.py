"""`make evaluate`: what it keeps, what it judges, and what it writes. Training needs SciPy, and is not tested here."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.requirements import need
from tests.service.service_kit import GTUBE, mail
from tools import evaluation_engines as engines
from tools.engine_weights import OWN, Case, compared, weights_table
from tools.evaluation_report import Judged, Measured, picture, report
from tools.evaluation_sample import chosen_ham, chosen_phishing
from tools.mail_corpus import CorpusMail
from tools.marked_parts import with_part
from tools.recorded_answers import RecordedAnswers


def test_a_report_replaced_what_was_written_by_hand():
    """A new measurement replaces its own part of the page, and nothing else."""
    page = "# Title\n\nBy hand.\n\n<!-- measured -->\n\nold\n\n<!-- end of measured -->\n\n## Remarks\n"
    assert with_part(page, "measured", r"new \1") == page.replace("old", r"new \1")
    assert "\n\nfirst\n\n" in with_part("<!-- measured -->\n", "measured", "first")
    with pytest.raises(ValueError, match="0 times"):
        with_part("# Title\n", "measured", "new")


@pytest.mark.long
def test_an_interrupted_run_asked_everything_again(tmp_path):
    """Answers are in the file as soon as they are there, and only what is missing is asked."""
    need("rspamd")
    kept = tmp_path / "answers.jsonl"
    first, second = (CorpusMail("a", tmp_path / name, is_phishing=False) for name in ("first", "second"))
    first.path.write_bytes(mail(b"Hello\r\n"))
    second.path.write_bytes(mail(GTUBE + b"\r\n"))
    digest = hashlib.sha256(first.content()).hexdigest()
    known = json.dumps({"engine": engines.version_of(engines.Rspamd), "mail": digest, "said": {"score": 99.0}})
    kept.write_text(f"{known}\n{known[:50]}\n")  # the run ended in the middle of a line
    answers = RecordedAnswers(kept)
    assert answers.of(engines.Rspamd, second) is None
    answers.ask(engines.Rspamd, [first, second])
    again = RecordedAnswers(kept)
    assert again.of(engines.Rspamd, first) == {"score": 99.0}
    said = again.of(engines.Rspamd, second)
    assert said is not None
    assert (said["action"], "GTUBE" in said["symbols"]) == ("reject", True), said


@dataclass(frozen=True)
class Mail:
    fold: str
    is_phishing: bool
    path: Path


def test_weights_were_judged_by_the_mails_they_were_chosen_with():
    """The sources that the weights were chosen with are for tuning only, and so is the older half of the phishing."""
    ham = [Mail(fold, False, Path(f"c/ham/{source}/deeper/{n}")) for fold, source in FOLDS for n in range(5)]
    found = chosen_ham(Path("c"), ham, {"sa-easy": [0.0] * 5, "small sources": [0.0] * 10}, 100)
    assert {(one.mail.path.parts[2], one.is_for_tuning) for one in found} == {
        ("sa-easy", True), ("enmime", True), ("flanker", False)
    }  # fmt: skip
    assert len(chosen_ham(Path("c"), ham, {"sa-easy": [0.0] * 5}, 3)) == 3
    newest = [Mail("pp", True, Path(f"c/phishing/pp/{n}")) for n in range(10)]
    ages = {int(one.mail.path.name): one.is_for_tuning for one in chosen_phishing(newest, [0.0] * 10, 100)}
    assert ages == {n: n < 5 for n in range(10)}


FOLDS = (("sa-easy", "sa-easy"), ("small sources", "enmime"), ("small sources", "flanker"))


def _case(own: float, rspamd: float, spamd: float, is_phishing: bool) -> Case:
    action = "add header" if rspamd >= 6 else "no action"
    said: dict[type[engines.Engine], engines.Said] = {
        engines.Rspamd: {"action": action, "score": rspamd, "required_score": 15.0},
        engines.SpamAssassin: {"spam": f"{spamd >= 5} ; {spamd} / 5.0"},
    }
    return Case("a", is_phishing, own, said)


def test_the_report_shows_all_engines_and_combinations():
    """The tables, and a picture that a browser can read."""
    cases = [_case(n / 10, 0, n % 6, False) for n in range(40)] + [_case(7.5, 7, 6, True)] * 10
    results = compared(cases)
    assert list(results) == [
        *(OWN, "rspamd", "SpamAssassin"),
        *(f"{OWN} with rspamd", f"{OWN} with SpamAssassin", f"{OWN} with both"),
    ]
    alone, both = results[OWN], results[f"{OWN} with both"]
    assert max(alone.phishing) < alone.threshold <= min(both.phishing)
    text = report(Measured(alone, dict.fromkeys((0.001, 0.002, 0.01), 8.0), results, ["rspamd 3.4"], left_out=3))
    assert f"| {OWN} with both | 100.0 % (72.2 to 100.0) |" in text
    assert "3 more mails are left out" in text
    assert ET.fromstring(picture(results)).tag.endswith("svg")
    assert len(weights_table(cases)) > 10


def test_one_engine_alone_can_be_compared():
    """Without the other engines, the report has our service only."""
    judged = Judged()
    judged.add("a", is_phishing=False, score=1.0)
    judged.add("a", is_phishing=True, score=9.0)
    text = report(Measured(judged, dict.fromkeys((0.001, 0.002, 0.01), 8.0)))
    assert "## Our service alone, on all 1 phishing mails and 1 legitimate ones" in text
    assert "All engines" not in text
