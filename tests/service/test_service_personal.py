"""Personal lists of the service: entries of recipients, in the scopes that the List API has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.matching.match import entries_about, find_address
from bridge.service.lists.index import ListIndex, traits_of
from bridge.service.lists.store import GLOBAL, PREDEFINED
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import CONFIG, EICAR, SOON_S, Lists, attached, mail, service, wait_for

ANNA, BEN, SENDER = "anna@example.org", "ben@example.org", "news@shop.example"
TENANT = "123e4567-e89b-12d3-a456-426614174000"
LINKS = b"http://192.0.2.1/a http://u:p@192.0.2.2/ \r\n"  # scores as suspicious
STRICT = "decisions: {scores: {'url:ip-host': 20.0}}\n"


def border(*recipients: str, sender: str = SENDER) -> dict[str, Any]:
    return {"sender": sender, "to": recipients}


def test_block_counts_if_all_recipients_agree(tmp_path: Path) -> None:
    """One decision applies to all recipients, so each of them must have blocked the sender."""
    with service(tmp_path, with_key=True) as running:
        Lists(running).add("personal-blocked-senders", f"Anna@Example.org {SENDER}")
        wait_for(lambda: running.submit(mail(b"x"), **border(ANNA)).json["decision"] == "quarantine", SOON_S)
        assert running.submit(mail(b"x"), **border(ANNA)).json["verdict"] == "blocked"
        assert running.submit(mail(b"x"), **border(ANNA, BEN)).json["decision"] == "deliver"
        assert running.submit(mail(b"x"), **border(BEN)).json["decision"] == "deliver"
        assert running.submit(mail(b"x"), **border(ANNA, sender="x@y.example")).json["decision"] == "deliver"


def test_allow_delivers_spam_and_nothing_dangerous(tmp_path: Path) -> None:
    """Spam by its score is delivered to the recipient who wants it; an attached test virus is not."""
    with service(tmp_path, CONFIG + STRICT, with_key=True) as running:
        assert running.submit(mail(LINKS), **border(ANNA)).json["decision"] == "bounce"
        Lists(running).add("personal-allowed-senders", f"{ANNA} @shop.example")
        wait_for(lambda: running.submit(mail(LINKS), **border(ANNA)).json["decision"] == "deliver", SOON_S)
        assert running.submit(mail(LINKS), **border(ANNA, BEN)).json["decision"] == "bounce"
        assert running.submit(attached(EICAR), **border(ANNA)).json["verdict"] == "malware"
        program = running.submit(attached(b"MZ" + bytes(100), "a.exe"), **border(ANNA)).json
        assert program["decision"] != "deliver" and "list:personal-allowed-senders" not in program["tags"]


def test_entries_of_a_tenant_count_for_its_mail_alone(tmp_path: Path) -> None:
    """Personal lists exist for the deployment and for each tenant, as all lists do."""
    with service(tmp_path, with_key=True) as running:
        Lists(running, tenant=TENANT).add("personal-blocked-senders", f"{ANNA} {SENDER}")
        ours = border(ANNA) | {"tenantUid": TENANT}
        wait_for(lambda: running.submit(mail(b"x"), **ours).json["decision"] == "quarantine", SOON_S)
        assert running.submit(mail(b"x"), **border(ANNA)).json["decision"] == "deliver"


def test_blocked_sender_wrote_a_name_that_folds_to_the_recipients() -> None:
    """Postfix delivers mail for `ru\u017fs` to `russ`; an entry that allows is about the exact spelling only."""
    index = ListIndex(PREDEFINED, frozenset({"personal-allowed-senders"}))
    for name in ("personal-blocked-senders", "personal-allowed-senders"):
        index.add(GLOBAL, name, f"russ@example.org {SENDER}")

    def matches(recipient: str) -> list[str]:
        return sorted(index.match(None, traits_of(SENDER, (), None, (), (), [recipient])))

    assert matches("RUSS@example.org") == ["personal-allowed-senders", "personal-blocked-senders"]
    assert matches("ru\u017fs@example.org") == matches("ru\u00df@EXAMPLE.org") == ["personal-blocked-senders"]
    assert matches("ru\u017f@example.org") == []


def test_many_recipients_and_authors_stopped_the_event_loop() -> None:
    """Every recipient was compared with every parent of every author's domain: 15 s for one mail."""
    index = ListIndex(PREDEFINED, frozenset())
    index.add(GLOBAL, "personal-blocked-senders", f"{ANNA} @shop.example")
    index.add(GLOBAL, "blocked-domains", "other.example")
    authors = [f"a@{number}.{'a.' * 110}shop.example" for number in range(200)]
    recipients = [f"r{number}@example.org" for number in range(1000)]
    found: list[str] = []
    traits = traits_of(SENDER, authors, None, (), (), recipients)
    assert fair_cpu_s(lambda: found.extend(index.match(None, traits))) < 1
    assert found == []
    assert index.match(None, traits_of("x@y.example", authors, None, (), (), [ANNA])) == ["personal-blocked-senders"]


def test_the_entries_about_a_sender_are_those_that_are_looked_up() -> None:
    for category in ("sender", "domain"):
        for sender in ("a@b.c.example", "a@example", "", '"a@b"@example.org'):
            looked_up: list[str] = []

            class Words:
                def __contains__(self, entry: object, found: list[str] = looked_up) -> bool:
                    found.append(str(entry))
                    return False

            assert find_address(category, Words(), sender) is None
            assert looked_up == list(entries_about(category, sender))
