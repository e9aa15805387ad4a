"""Compares phishing detection: `make evaluate CORPUS=...` (layout of CORPUS: `tools/mail_corpus.py`).

Compares our service alone, rspamd and SpamAssassin alone, and our service with either or both of them, on the same
mails in a single run. No mail is judged by a model that was trained on it: each source of legitimate mail is judged by
a model that was trained without that source, and phishing by models that were trained only on older phishing. The
weights of the engines were tuned on some sources and on older phishing (`--tune`), and are evaluated on the others.

The engines run without network tests, unlike in most installations, so these numbers only show how they compare on the
content of a mail. Their answers are kept, and an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bridge.service.detection.model import POINTS_PER_MARGIN, QUARANTINE_POINTS
from tools import evaluation_engines as engines
from tools.engine_weights import OWN, Case, compared, weights_table
from tools.evaluation_report import RATES, Judged, Measured, picture, report
from tools.evaluation_sample import Chosen, chosen_ham, chosen_phishing
from tools.marked_parts import with_part
from tools.rates import threshold_at
from tools.recorded_answers import RecordedAnswers
from tools.train import read_corpus, unseen_scores

EMPTY_PAGE = "# Detection of phishing\n\n<!-- measured -->\n"


def points(margin: float, threshold: float) -> float:
    """As in the decision table, without its bounds."""
    return max(0.0, QUARANTINE_POINTS + POINTS_PER_MARGIN * (margin - threshold))


def asked(chosen: Sequence[Chosen], kept: Path | None, threshold: float) -> list[Case]:
    """What the engines say of these mails; a mail without an answer is left out. `threshold` is our own."""
    answers = RecordedAnswers(kept)
    kinds = engines.installed()
    for kind in kinds:
        answers.ask(kind, [one.mail for one in chosen])
    cases = []
    for one in chosen:
        said = {kind: answer for kind in kinds if (answer := answers.of(kind, one.mail)) is not None}
        if len(said) == len(kinds):
            own = points(one.margin, threshold)
            cases.append(Case(one.example.fold, one.example.is_phishing, own, said))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/detection.md"))
    parser.add_argument("--cache", type=Path, help="file with the signals of all mails, from `tools.train`")
    parser.add_argument("--answers", type=Path, help="file for the engines' answers (default: CORPUS/answers.jsonl)")
    parser.add_argument(
        "--sample", type=int, default=700, help="mails from each source that the engines scan (0 = none)"
    )
    parser.add_argument(
        "--phishing", type=int, default=800, help="phishing mails that the engines scan; half as many for tuning"
    )
    parser.add_argument(
        "--newest", type=float, default=0.4, help="share of the phishing mails to test on, newest first"
    )
    parser.add_argument(
        "--tune", action="store_true", help="compare weights of the engines instead of writing a report"
    )
    given = parser.parse_args()
    ham, phishing = read_corpus(given.corpus, given.cache)
    cut = round(len(phishing) * (1 - given.newest))
    ham_scores, new_scores = unseen_scores([*ham, *phishing[:cut]], phishing[cut:])
    whole = Judged(ham_scores, new_scores)
    thresholds = {rate: threshold_at(whole.all_ham, rate) for rate in RATES}
    chosen = chosen_ham(given.corpus, ham, ham_scores, given.sample)
    chosen += chosen_phishing(phishing[cut:], new_scores, given.phishing if given.sample else 0)
    chosen = [one for one in chosen if one.is_for_tuning == given.tune]
    cases = asked(chosen, given.answers or given.corpus / "answers.jsonl", thresholds[0.002])
    if given.tune:
        print("\n".join(weights_table(cases)))
        return
    versions = [engines.version_of(kind) for kind in engines.installed()]
    both = compared(cases) if versions and cases else {}
    found = Measured(whole, thresholds, both, versions, left_out=len(chosen) - len(cases))
    page = given.out.read_text(encoding="utf-8") if given.out.exists() else EMPTY_PAGE
    given.out.write_text(with_part(page, "measured", report(found)), encoding="utf-8")
    given.out.with_suffix(".svg").write_text(picture(found.compared or {OWN: whole}), encoding="utf-8")
    print(f"wrote {given.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
