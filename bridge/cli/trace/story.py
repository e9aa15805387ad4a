"""What a trace shows: one step after another, as sentences for people and as facts for programs.

Reads what the real parts did (`run`), and decides nothing itself. Our own ids are shown as `ID`: a real mail would get
another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.api.scanning import AnalysisRequest
from bridge.cli.trace import list_story
from bridge.cli.trace.mail_server import MAX_MAILS, Exchange, left_out
from bridge.cli.trace.run import Run, Setup
from bridge.cli.trace.stand_ins import ACCEPTED
from bridge.daemon import wiring
from bridge.filter.header_checks import count_received
from bridge.filter.outcome import Record
from bridge.filter.policy import Case
from bridge.mail.action import Action
from bridge.mail.address import comparable_domain, domain_of
from bridge.mail.header_fields import fields_with_prefix
from bridge.runtime.counted import counted
from bridge.runtime.units import show_duration, show_size

_DONE = {
    Action.RELAY: "pass it on",
    Action.REJECT: "refuse it",
    Action.DISCARD: "accept and drop it",
    Action.QUARANTINE: "store it in the quarantine",
    Action.HOLD: "have the mail server hold it",
    Action.TEMPFAIL: "defer it, so that the client tries again later",
}
_DECISIONS = (Case.DELIVER, Case.QUARANTINE, Case.BOUNCE, Case.DROP, Case.UNDECIDED)


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()  # that belong to the text, such as header fields

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.name, "text": self.text, **self.facts}


def before_decision(setup: Setup, done: Run) -> Iterator[Step]:
    """From the connection up to the request to the scanner."""
    yield _listener(setup)
    yield from _shadow(setup)
    yield _size(setup)
    yield from _forged(setup)
    yield _client(setup, done)
    for address in dict.fromkeys(setup.given.recipients):
        yield _tenant(setup, address)
    yield from (Step("list", text, facts) for text, facts in list_story.told(setup, done))
    for number, exchange in enumerate(done.exchanges):
        yield from _refused_commands(done, exchange, number)
    yield from _left_out(done)
    if done.requests:
        yield _admission(setup)
    for request in done.requests:
        yield _request(setup, request)
    if not done.requests and done.processed:
        yield Step("scanner", "The scanner is not used.", {"asked": False})


def decided(setup: Setup, done: Run) -> Iterator[Step]:
    """What follows from the decision, or from its absence, for each mail or part of one."""
    for record in done.processed:
        yield from _decision(setup, done, record)
        yield _rule(record, _for(done, record))
        yield from _places(setup, done, record)
        yield from _replies(record, _for(done, record), setup)


def delivery(setup: Setup, done: Run) -> Iterator[Step]:
    """Where the mail would go, and with which header fields."""
    for record in done.processed:
        yield from _places(setup, done, record)


def policy_row(setup: Setup, record: Record, case: Case) -> dict[str, Any]:
    """One line of the table of all cases."""
    outcome = record.outcome
    assert outcome is not None
    action = record.would or outcome.action
    return {
        "recipients": list(record.tx.envelope.addresses),
        "case": str(case),
        "rule": record.rule,
        "action": str(action),
        "reply": reply_text(setup, record),
    }


def reply_text(setup: Setup, record: Record) -> str:
    outcome = record.outcome
    assert outcome is not None
    if not setup.listener.hands_on and outcome.reply.is_success:
        return "the mail server's own reply"
    if outcome.reply is ACCEPTED:
        return "the next hop's own reply"
    return without_id(str(outcome.reply), record)


def without_id(text: str, record: Record) -> str:
    return text.replace(record.tx.id, "ID")


# The steps


def _listener(setup: Setup) -> Step:
    listener, others = setup.listener, len(setup.config.listeners) - 1
    text = (
        f"Listener {listener.name} receives the mail over {listener.protocol.upper()} at {listener.address}; its "
        f"profile is {listener.profile}, and the client gets an answer within {show_duration(listener.deadline)}."
    )
    if others:
        names = ", ".join(other.name for other in setup.config.listeners if other is not listener)
        text += f" (--listener chooses another one: {names}.)"
    facts = {"listener": listener.name, "protocol": listener.protocol, "profile": listener.profile}
    return Step("listener", text, {**facts, "deadline_s": listener.deadline})


def _shadow(setup: Setup) -> Iterator[Step]:
    percent = wiring.filter_settings(setup.config, setup.listener).shadow_percent
    if percent >= 100:
        yield Step("shadow", "The listener is in shadow mode: the mail is passed on regardless of the decision.", {})
    elif percent:
        text = (
            f"{percent:g} % of the mail is only observed (shadow_percent) and passed on; "
            "this trace shows what happens to the rest."
        )
        yield Step("shadow", text, {"percent": percent})


def _size(setup: Setup) -> Step:
    content, limits = setup.given.content, setup.config.limits
    head = content.partition(b"\r\n\r\n")[0]
    received = count_received(head.lower())
    ambiguity = "refuses" if setup.listener.refuse_ambiguous_mime else "does not refuse"
    text = (
        f"The mail is {len(content):,} bytes long (limits.max_message_size: {show_size(limits.max_message_size)}); its "
        f"header section is {len(head):,} bytes long and has {counted(received, 'Received field')} "
        f"(limits.max_received: {limits.max_received}). The listener {ambiguity} mail with an ambiguous MIME structure."
    )
    facts = {"size": len(content), "header_size": len(head), "received_fields": received}
    return Step("limits", text, {**facts, "refuses_ambiguous": setup.listener.refuse_ambiguous_mime})


def _forged(setup: Setup) -> Iterator[Step]:
    prefix = setup.config.headers.prefix
    head = setup.given.content.partition(b"\r\n\r\n")[0] + b"\r\n"
    count = len(list(fields_with_prefix(prefix).find(head)))
    if count:
        text = f"Header fields that start with {prefix}: {count}. Only the bridge may add these, so they are removed."
        yield Step("forged", text, {"prefix": prefix, "count": count})


def _client(setup: Setup, done: Run) -> Step:
    session = done.records[0].tx.session if done.records else None
    client = session.client if session is not None else None
    address, helo = (client.address, client.helo) if client else (setup.given.remote_address, setup.given.helo)
    if session is not None and session.is_told and address:
        text = f"The client is {address}" + (f", which said HELO {helo}." if helo else "; its HELO is unknown.")
    else:
        text = "The client is unknown, so the scanner is not told who sent the mail (see --remote-address and --helo)."
        address = helo = None
    return Step("client", text, {"remote_address": address, "helo": helo})


def _tenant(setup: Setup, address: str) -> Step:
    conf, domain = setup.config, domain_of(address)
    tenant = wiring.tenants_by_domain(conf).get(domain)
    if tenant is not None:
        place = next(place for place, other in enumerate(conf.tenants) if other.uid == tenant)
        text, why = f"its domain {domain} is in tenants[{place}].recipient_domains", f"tenants[{place}]"
    elif conf.scanner.tenant_uid is not None:
        tenant, why = conf.scanner.tenant_uid, "scanner.tenant_uid"
        text = "its domain is not in `tenants`, and scanner.tenant_uid is the default"
    else:
        text, why = ("its domain is not in `tenants`" if conf.tenants else "no tenants are configured"), ""
    belongs = f"belongs to tenant {tenant}" if tenant else "belongs to no tenant"
    return Step("tenant", f"{address} {belongs}: {text}.", {"recipient": address, "tenant": tenant, "why": why or None})


def _refused_commands(done: Run, exchange: Exchange, number: int) -> Iterator[Step]:
    """MAIL, RCPT and DATA that were not accepted."""
    if exchange.mail and not exchange.mail.startswith("2"):
        yield _refused(done, "mail", (), exchange.mail)
    for address, reply in exchange.recipients.items():
        if reply.startswith("2"):
            continue
        step = _refused(done, "rcpt", (address,), reply)
        facts = {"recipient": address, **step.facts, "transaction": number + 1}
        is_later = address in exchange.later and exchange.accepted
        later = f" (The mail server sends the mail to {address} in another transaction.)" if is_later else ""
        yield Step("rcpt", step.text + later, facts)
    if exchange.data and exchange.data[0] not in "23":
        yield Step("data", f"DATA is refused: the client receives {exchange.data}", {"reply": exchange.data})


def _left_out(done: Run) -> Iterator[Step]:
    if left := left_out(done.exchanges):
        text = (
            f"The trace stops after {MAX_MAILS} transactions. The mail server would send the mail to the other "
            f"{len(left):,} recipients in further transactions; trace them separately (--to)."
        )
        yield Step("left_out", text, {"count": len(left), "recipients": left})


def _refused(done: Run, at: str, addresses: tuple[str, ...], reply: str) -> Step:
    """The rule is known only for a logged refusal; a command that is refused for its form alone is not logged."""
    found = [record for record in done.records if record.at == at and record.tx.envelope.addresses == addresses]
    command = " ".join((at.upper(), *addresses))
    if not found:
        return Step(at, f"{command} is refused: the client receives {reply}", {"reply": reply})
    shown = without_id(reply, found[0])
    text = f"{command} is refused by rule {found[0].rule}: the client receives {shown}"
    return Step(at, text, {"rule": found[0].rule, "reply": shown})


def _admission(setup: Setup) -> Step:
    admission = setup.config.admission
    limit, threshold = map(admission.share_of, (admission.max_in_processing, admission.throttle_threshold))
    text = f"Admission: at most {limit} mails are processed at the same time"
    if threshold < limit:
        text += f", with an increasing delay once {threshold} are being processed"
    return Step("admission", f"{text}; here, the mail gets a slot.", {"max_in_processing": limit})


def _request(setup: Setup, request: AnalysisRequest) -> Step:
    border = request.border
    verb = "is sent" if setup.scanner is not None else "would be sent"
    recipients = ", ".join(border.envelope_recipients)
    text = f"The mail from <{border.envelope_from}> to {recipients} {verb} to the scanner"
    parts = [
        f"client {border.remote_address}" if border.remote_address else "",
        f"HELO {border.sender_helo}" if border.sender_helo else "",
        f"tenant {request.tenant_uid}" if request.tenant_uid else "no tenant",
    ]
    facts = {
        "asked": True,
        "dialect": setup.config.scanner.dialect,
        "urls": list(setup.config.scanner.urls),
        "envelope_from": border.envelope_from,
        "recipients": list(border.envelope_recipients),
        "remote_address": border.remote_address,
        "helo": border.sender_helo,
        "tenant": request.tenant_uid,
    }
    return Step("scanner", f"{text} ({', '.join(filter(None, parts))}): {', '.join(setup.config.scanner.urls)}.", facts)


def _decision(setup: Setup, done: Run, record: Record) -> Iterator[Step]:
    outcome = record.outcome
    assert outcome is not None
    was_asked = any(request.border.envelope_recipients == record.tx.envelope.addresses for request in done.requests)
    if not was_asked:
        return
    who, result = _for(done, record), outcome.result
    if setup.scanner is None:
        is_decision = done.case in _DECISIONS
        what = f"the scanner's decision is {done.case}" if is_decision else f"there is no decision: {done.case}"
        yield Step("decision", f"{who}Suppose that {what}.", {"case": str(done.case), "supposed": True})
        if done.case is Case.SATURATED and done.closed_at_mail is not None:
            text = f"While there is no capacity, clients get this reply earlier, at MAIL: {done.closed_at_mail}"
            yield Step("mail", text, {"reply": str(done.closed_at_mail)})
    elif result is not None:
        tags = ", ".join(result.tags) or "none"
        said = f"decision is {result.decision}, and its verdict is {result.verdict or 'empty'}; tags: {tags}."
        text = f"{who}The scanner's {said}"
        text += f" Reasons for suspicion: {'; '.join(result.reasons)}." if result.reasons else ""
        yield Step("decision", text, {**result.to_dict(), "supposed": False})
    else:
        text = f"{who}There is no decision: {record.error}."
        yield Step("decision", text, {"decision": None, "problem": str(record.error), "supposed": False})


def _rule(record: Record, who: str) -> Step:
    outcome = record.outcome
    assert outcome is not None
    facts: dict[str, Any] = {"rule": record.rule, "action": str(outcome.action)}
    if record.doubts:
        facts["ambiguous"] = list(record.doubts)
    if record.would is not None:
        facts["would"] = str(record.would)
        text = f"{who}Rule {record.rule} would {_DONE[record.would]}; in shadow mode, the mail is passed on."
        return Step("rule", text, facts)
    why = f" ({record.why})" if record.doubts else ""
    return Step("rule", f"{who}Rule {record.rule} applies{why}: {_DONE[outcome.action]}.", facts)


def _places(setup: Setup, done: Run, record: Record) -> Iterator[Step]:
    """The header fields and the next hops of a mail that is handed on, or the quarantine."""
    outcome, who, addresses = record.outcome, _for(done, record), record.tx.envelope.addresses
    assert outcome is not None
    handed = [hop for hop in done.handed if set(hop.recipients) <= set(addresses)]
    kept = [head for tx, head, _ in done.kept if tx.id == record.tx.id]
    if not setup.listener.hands_on:
        fields = [f"{name}: {value}" for name, value in outcome.stamp]
    else:
        heads = [hop.head for hop in handed] or kept
        fields = _fields(heads[-1]) if heads else []
    if fields:
        shown = tuple(without_id(line, record) for line in fields)
        yield Step("header", f"{who}These header fields are added:", {"fields": list(shown)}, shown)
    if kept:
        text = f"{who}A copy is stored in the quarantine."
        if outcome.action is Action.QUARANTINE:
            text = f"{who}The mail is stored in the quarantine, until it is released or deleted."
        yield Step("quarantine", text, {"directory": setup.config.quarantine.directory})
    for hop in handed:
        for address in hop.recipients:
            yield _next_hop(setup, address, hop.next_hop, hop.problem)
    if outcome.action in (Action.RELAY, Action.HOLD) and not setup.listener.hands_on:
        verb = "delivers the mail" if outcome.action is Action.RELAY else "keeps the mail in its hold queue"
        yield Step("next_hop", f"{who}The mail server itself {verb}.", {"next_hop": None})


def _next_hop(setup: Setup, address: str, next_hop: str, problem: str) -> Step:
    why = _route(setup, address)
    text = f"{address} goes to the next hop {next_hop} ({why})"
    facts: dict[str, Any] = {"recipient": address, "next_hop": next_hop, "why": why}
    if setup.probes:
        facts["answers"], facts["problem"] = not problem, problem or None
        text += f", which cannot be used now: {problem}" if problem else ", which answers"
    return Step("next_hop", f"{text}.", facts)


def _route(setup: Setup, address: str) -> str:
    """The key of the configuration that names the next hop of this recipient."""
    conf, domain = setup.config, domain_of(address)
    if domain not in wiring.hops_by_domain(conf):
        return "relay.next_hop"
    for place, tenant in enumerate(conf.tenants):
        if tenant.relay is not None and domain in map(comparable_domain, tenant.recipient_domains):
            return f"tenants[{place}].relay"
    return "relay.routes"


def _replies(record: Record, who: str, setup: Setup) -> Iterator[Step]:
    outcome = record.outcome
    assert outcome is not None
    told = "The client" if setup.listener.hands_on else "The client of the mail server"
    if outcome.replies and len({str(reply) for reply in outcome.replies}) > 1:
        for address, reply in zip(record.tx.envelope.addresses, outcome.replies, strict=True):
            shown = "the next hop's own reply" if reply.is_success else without_id(str(reply), record)
            yield Step("reply", f"{told} receives for {address}: {shown}", {"recipient": address, "reply": shown})
        return
    shown = reply_text(setup, record)
    yield Step("reply", f"{who}{told} receives: {shown}", {"reply": shown})


def _for(done: Run, record: Record) -> str:
    """Which part of the mail this is about, if there are several."""
    return f"For {', '.join(record.tx.envelope.addresses)}: " if len(done.processed) > 1 else ""


def _fields(head: bytes) -> list[str]:
    text = head.decode("utf-8", "replace").replace("\r\n\t", " ")
    return [line for line in text.split("\r\n") if line]
