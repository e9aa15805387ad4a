"""SPF, DKIM and DMARC, where DNS queries are allowed (`analyzers.authentication.dns: true`).

pyspf evaluates SPF and dkimpy verifies signatures. DMARC is small and implemented here: the record
of each From domain or of a parent (the tree walk that replaced the public suffix list), and alignment.
The libraries block, so they run in a thread, with one deadline for all lookups of a mail.

A sender chooses the envelope domain and the domains of signatures, and may choose ones whose name servers never
answer, or whose records make a library fail. Those domains then have no result, but the author's domain keeps its
policy: its record and its signatures are looked up first, and all other lookups end before the analyzer's time is up.
If the DMARC record of an author's domain cannot be looked up, the analyzer raises and gives no answer either, unless
another author's domain says that the mail is forged.

Once the record is known, there is always a result. A mail that fails DMARC, but might have passed if every lookup had
been answered, gets `temperror`: it may be honest, and whoever forged it may have chosen a lookup that fails.

dkimpy takes quadratic time for some mails. A regular expression, and the arithmetic of a key with a long exponent, hold
the GIL while they run, so they stop every thread of the service. We therefore replace dkimpy's patterns for the body,
and do not give it a header section, a signature or a key that is larger than any that mail servers make: such a
signature counts as invalid. Large mails take turns.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bridge.errors import ConfigError
from bridge.mail.address import comparable_domain, split_address
from bridge.matching import spelling
from bridge.mime.structure import Bounds, TooMuch, walk
from bridge.service.analysis import headers
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analyzer_settings import Authentication

MAX_SIZE = 20 * 1024 * 1024  # dkimpy holds about three copies of a mail
MAX_SIGNATURES = 5  # of the author's domains, and as many of others
MAX_HASHED = 40 * 1024 * 1024  # bytes, for all signatures of one kind: each is over the whole mail
MAX_HEAD = 256 * 1024  # bytes of a header section; the signatures in a larger one are not verified,
MAX_HEAD_LINES = 5000  # nor in one with more lines
MAX_SIGNATURE = 8 * 1024  # bytes; one with a key of 4,096 bits has about 1,500
MAX_KEY_BITS = 8192  # RFC 8301 3.2: 4,096 must be enough
MAX_EXPONENT_BITS = 64  # nearly all keys have 65,537; with one of 8,000 bits, a signature takes two seconds
MAX_RECORD = 4096  # bytes of a TXT record; pyspf takes seconds for one of 60 KB
MAX_AUTHORS = 10  # domains in From; regular mail has one
THREADS = 100  # they mostly wait for DNS: as long as a sender likes, so a few mails must not occupy all of them
LARGE = 256 * 1024  # bytes; hashing a smaller mail takes about as long as a thread holds the GIL anyway (5 ms)
MAX_LARGE = 4  # large mails of which signatures are verified at a time: the threads are for DNS
FOR_RECORDS, FOR_AUTHORS, FOR_ALL = 0.4, 0.6, 0.8  # of the time: for DMARC records, the author's keys, all lookups
MAX_LABELS = 8  # of a domain, in the tree walk
TEMPERROR = "temperror"


class DnsUnavailable(Exception):
    """A lookup got no response, not even that the name does not exist; or there is no time left for it."""


@dataclass(frozen=True, slots=True)
class Results:
    """The three results; `dmarc` is `pass`, the policy for a failed mail, `temperror`, or empty without a record."""

    spf: str = ""
    dkim: str = ""
    dmarc: str = ""

    def tags(self) -> frozenset[str]:
        found = (("spf", self.spf), ("dkim", self.dkim), ("dmarc", self.dmarc))
        return frozenset(f"auth:{name}-{value}" for name, value in found if value)


class AuthenticationAnalyzer:
    def __init__(self, settings: Authentication) -> None:
        try:
            self._dkim: Any = _library("dkim")
            canonicalization: Any = _library("dkim.canonicalization")
            self._spf: Any = _library("spf")
            resolver: Any = _library("dns.resolver")
        except ImportError:
            raise ConfigError(
                "analyzers.authentication: libraries are missing; run pip install 'scanbridge[authentication]'"
            ) from None
        canonicalization.strip_trailing_whitespace = _strip_trailing_whitespace
        canonicalization.compress_whitespace = _compress_whitespace
        self._spf.DNSLookup = _spf_lookup  # pyspf's documented way to use another resolver
        self._spf.query.get_explanation = _no_explanation
        self._resolver: Any = resolver.Resolver(configure=not settings.nameservers)
        if settings.nameservers:
            self._resolver.nameservers = [address.host for address in settings.nameservers]
            self._resolver.port = settings.nameservers[0].port
        self._timeout_s = settings.timeout
        self._is_required = settings.required
        self._threads = ThreadPoolExecutor(THREADS, "authentication")
        self._large = threading.Semaphore(MAX_LARGE)

    async def start(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > MAX_SIZE:
            raise LimitReached("size")
        start = time.monotonic()
        results = await asyncio.get_running_loop().run_in_executor(self._threads, self.check, mail, start)
        return Findings(results.tags())

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, mail: Mail, start: float) -> Results:
        """Run all three checks. Blocks; raises DnsUnavailable."""
        content = b"".join(mail.chunks())
        dns = _Dns(self._resolver, start)
        authors = _author_domains(content)
        if len(authors) > MAX_AUTHORS:
            return Results(dmarc="quarantine")
        records = self._records(authors, dns)
        organisations = {found.organisation for found in records.values() if found}
        signatures = self._signatures(content, organisations)
        proofs = Proofs()
        dns.deadline = start + FOR_AUTHORS * self._timeout_s
        for signature in signatures.own:
            self._verify(signature, dns, proofs)
        dns.deadline = start + FOR_ALL * self._timeout_s
        spf = self._check_spf(mail, dns, proofs)
        for signature in signatures.others:
            self._verify(signature, dns, proofs)
        dkim = "pass" if proofs.passed["adkim"] else "fail" if signatures.any else "none"
        result = worst(judge(author, proofs, record) for author, record in records.items())
        if result == TEMPERROR and self._is_required:
            raise DnsUnavailable("dmarc")
        if len(records) < len(authors) and result not in (TEMPERROR, "quarantine", "reject"):
            raise DnsUnavailable("dmarc")
        return Results(spf, dkim, result)

    def _records(self, authors: set[str], dns: _Dns) -> dict[str, Record | None]:
        """Those of the domains that give an answer; each has its own share of the time."""
        start, found = dns.deadline, {}
        for number, author in enumerate(sorted(authors), 1):
            dns.deadline = start + FOR_RECORDS * self._timeout_s * number / len(authors)
            with suppress(DnsUnavailable):
                found[author] = find_record(author, dns.txt)
        return found

    def _check_spf(self, mail: Mail, dns: _Dns, proofs: Proofs) -> str:
        border = mail.request.border
        if not border.remote_address:
            return ""
        _current.dns = dns
        domain = ""
        try:
            query = self._spf.query(
                i=border.remote_address, s=_ascii(border.envelope_from), h=_ascii(border.sender_helo or "unknown"),
                timeout=dns.left(), querytime=dns.left(),
            )  # fmt: skip
            domain = str(query.o)
            result = str(query.check()[0])
        except DnsUnavailable:
            result = TEMPERROR
        except Exception:  # the library fails in many ways on what a sender writes into its record
            result = "permerror"
        if result == "pass":
            proofs.passed["aspf"].append(domain)
        elif result == TEMPERROR or dns.is_client_unknown:
            proofs.unsure["aspf"].append(domain)
        return result

    def _signatures(self, content: bytes, organisations: set[str]) -> _Signatures:
        """The signatures to verify: those of the author's domains, and some of the others."""
        if not _has_usual_head(content):
            return _Signatures(any=b"dkim-signature" in content[:MAX_HEAD].lower())
        try:
            verifier = self._verifier(content)
        except Exception:
            return _Signatures(any=True)
        fields = [value for name, value in verifier.headers if name.lower() == b"dkim-signature"]
        own: list[_Signature] = []
        others: list[_Signature] = []
        for i, value in enumerate(fields):
            if len(value) > MAX_SIGNATURE:
                continue
            domain = _signing_domain(value)
            (own if _aligned(domain, organisations) else others).append((verifier, i, domain))
        most = min(MAX_SIGNATURES, MAX_HASHED // (len(content) + 1) + 1)
        return _Signatures(bool(fields), own[:most], others[:most])

    def _verifier(self, content: bytes) -> Any:
        """dkimpy's, which would hold the GIL for a second to split a body of 20 MB into short lines."""
        end = _HEAD_END.search(content)
        verifier = self._dkim.DKIM(content[: end.end()] if end else content)
        if end:
            verifier.body = content[end.end() :].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        return verifier

    def _verify(self, signature: _Signature, dns: _Dns, proofs: Proofs) -> None:
        """Note the domain of a signature if it is valid, or if there is no answer, or no time left, to find out."""
        verifier, index, domain = signature
        with ExitStack() as turn:

            def key(name: bytes, timeout: int = 5) -> bytes | None:
                found = self._key(name.decode("utf-8", "replace"), dns)
                if found:  # dkimpy hashes the mail next
                    turn.enter_context(self._turn(len(verifier.body), dns))
                return found

            try:
                if verifier.verify(index, dnsfunc=key):
                    proofs.passed["adkim"].append(comparable_domain(verifier.domain.decode("utf-8", "replace")))
            except DnsUnavailable:
                proofs.unsure["adkim"].append(domain)
            except Exception:  # the library fails in many ways on what a sender publishes, not only with its own errors
                return

    @contextmanager
    def _turn(self, size: int, dns: _Dns) -> Iterator[None]:
        """Large mails wait until only a few others are being hashed. Raises DnsUnavailable if that takes too long."""
        if dns.is_over():  # a large mail has many signatures: that must not cost the author's domain its policy
            raise DnsUnavailable("deadline")
        if size < LARGE:
            yield
            return
        if not self._large.acquire(timeout=dns.left()):
            raise DnsUnavailable("busy")
        try:
            yield
        finally:
            self._large.release()

    def _key(self, name: str, dns: _Dns) -> bytes | None:
        """The record of a key; None if there is none, or it would take long to use. Raises what dkimpy raises."""
        record = dns.raw_txt(name)
        key = self._dkim.evaluate_pk(name, record)[0] if record else None
        if isinstance(key, dict) and (
            key["modulus"].bit_length() > MAX_KEY_BITS or key["publicExponent"].bit_length() > MAX_EXPONENT_BITS
        ):
            return None
        return record


_Signature = tuple[Any, int, str]  # a dkimpy verifier, the number of a signature, and its domain


@dataclass(frozen=True, slots=True)
class _Signatures:
    any: bool = False
    own: Sequence[_Signature] = ()
    others: Sequence[_Signature] = ()


_CUT = re.compile(rb"[^\t \r]|\r(?!\n)")  # what no white space before a line end contains
_PIECE = 64 * 1024  # bytes, for which other threads wait
_HEAD_END = re.compile(rb"\n\r?\n")


def _strip_trailing_whitespace(content: bytes) -> bytes:
    """As dkimpy's, but in linear time: its pattern looks at a run of spaces again from each of them."""
    return b"".join(map(_strip_lines, _pieces(content)))


def _strip_lines(piece: bytes) -> bytes:
    if b" \r\n" not in piece and b"\t\r\n" not in piece:
        return piece
    *lines, rest = piece.split(b"\r\n")
    return b"\r\n".join([*(line.rstrip(b"\t ") for line in lines), rest])


def _pieces(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        cut = _CUT.search(content, at + _PIECE)
        end = cut.end() if cut else len(content)
        yield content[at:end]
        at = end


def _compress_whitespace(content: bytes) -> bytes:
    """As dkimpy's, in a twentieth of the time. dkimpy blocks all threads for four seconds with 20 MB of short words."""
    content = content.replace(b"\t", b" ")
    while b"  " in content:
        content = content.replace(b"  ", b" ")
    return content


def _has_usual_head(content: bytes) -> bool:
    end = _HEAD_END.search(content, 0, MAX_HEAD)
    head = content[: end.start()] if end else content
    return len(head) < MAX_HEAD and head.count(b"\n") < MAX_HEAD_LINES


def _signing_domain(value: bytes) -> str:
    """The `d=` of a signature."""
    tags = (part.partition(b"=") for part in value.split(b";"))
    found = [text for name, _, text in tags if name.strip() == b"d"]
    return comparable_domain(b"".join(found[:1]).strip().decode("utf-8", "replace"))


def _aligned(domain: str, organisations: Iterable[str]) -> bool:
    return any(_within(comparable_domain(domain), organisation) for organisation in organisations)


def _library(name: str) -> Any:
    return import_module(name)


@dataclass(slots=True)
class _Dns:
    """The lookups of one mail: cached, and all subject to one deadline."""

    resolver: Any
    deadline: float
    known: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    is_client_unknown: bool = False  # the name of the client's address got no answer

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def left(self) -> float:
        return max(0.01, self.deadline - time.monotonic())

    def ask(self, name: str, kind: str) -> list[Any]:
        import dns.exception
        import dns.resolver

        name = comparable_domain(name)
        key = (name, kind)
        if not name.isascii():  # no such name can be looked up, whoever wrote it
            return []
        if key not in self.known:
            if self.is_over():
                raise DnsUnavailable("deadline")
            try:
                found = list(self.resolver.resolve(name, kind, lifetime=self.left()))
                self.known[key] = [record for record in found if _is_usual_size(record)]
            except (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN, dns.exception.SyntaxError, dns.name.LabelTooLong):
                self.known[key] = []
            except (dns.name.NameTooLong, dns.name.EmptyLabel, UnicodeError):
                self.known[key] = []
            except dns.exception.DNSException as exc:
                raise DnsUnavailable(type(exc).__name__) from exc
        return self.known[key]

    def raw_txt(self, name: str) -> bytes | None:
        found = self.ask(name, "TXT")
        return b"".join(found[0].strings) if found else None

    def txt(self, name: str) -> list[str]:
        return [b"".join(record.strings).decode("ascii", "replace") for record in self.ask(name, "TXT")]


def _is_usual_size(record: Any) -> bool:
    return sum(map(len, getattr(record, "strings", ()))) <= MAX_RECORD


_current = threading.local()  # the lookups of the mail that this thread is checking


def _spf_lookup(name: str, kind: str, *_unused: Any) -> list[tuple[tuple[str, str], Any]]:
    """Replaces pyspf's DNS lookup: uses our resolver and our deadline."""
    readers: dict[str, Callable[[Any], Any]] = {
        "A": lambda r: r.address,
        "AAAA": lambda r: r.address,
        "MX": lambda r: (r.preference, r.exchange.to_text(True)),
        "PTR": lambda r: r.target.to_text(True),
        "TXT": lambda r: r.strings,
    }
    if kind not in readers:
        return []
    try:
        found = _current.dns.ask(name, kind)
    except DnsUnavailable:
        if kind != "PTR":
            raise
        _current.dns.is_client_unknown = True
        return []  # RFC 7208 5.5: the mechanism does not match, and the next one may
    return [((name, kind), readers[kind](record)) for record in found]


def _no_explanation(query: Any, spec: str) -> None:
    """Replaces pyspf's lookup of `exp=`, a text that no one reads here: it could use up the time of all others."""


@dataclass(frozen=True, slots=True)
class Record:
    """The DMARC record that applies to an author's domain."""

    tags: Mapping[str, str]
    found_at: str
    organisation: str  # the topmost domain with a record


@dataclass(frozen=True, slots=True)
class Proofs:
    """The domains that SPF and DKIM have authenticated, and those about which a lookup got no answer.

    They are listed under the tag of a record that says how strictly they must align with the author's domain.
    """

    passed: dict[str, list[str]] = field(default_factory=lambda: {"aspf": [], "adkim": []})
    unsure: dict[str, list[str]] = field(default_factory=lambda: {"aspf": [], "adkim": []})


def judge(author: str, proofs: Proofs, record: Record | None) -> str:
    """As `dmarc`, but `temperror` for a mail that fails, and might have passed if every lookup had been answered."""
    result = dmarc(author, proofs.passed, record)
    is_unsure = dmarc(author, proofs.unsure, record) == "pass"
    return TEMPERROR if is_unsure and result in ("quarantine", "reject") else result


def worst(results: Iterable[str]) -> str:
    """The strictest of several results: a mail with several authors must satisfy the domains of all of them.

    It passes only if each of them passes: one without a record proves nothing.
    """
    return max(results, key=("pass", "", "none", TEMPERROR, "quarantine", "reject").index, default="")


def dmarc(author: str, passed: Mapping[str, Iterable[str]], record: Record | None) -> str:
    """`pass`, or the policy (`none`, `quarantine`, `reject`) for a mail that fails, or empty without a record.

    `passed` contains the domains authenticated by SPF (`aspf`) and DKIM (`adkim`), under the tag that
    says how strictly they must align with the author's domain.
    """
    if record is None:
        return ""
    tags = record.tags
    for tag, domains in passed.items():
        relaxed = tags.get(tag) != "s"
        for domain in domains:
            aligned = comparable_domain(domain)
            if aligned == author or (relaxed and _within(aligned, record.organisation)):
                return "pass"
    policy = tags.get("p", "none") if record.found_at == author else tags.get("sp", tags.get("p", "none"))
    return policy if policy in ("none", "quarantine", "reject") else "none"


def _within(domain: str, organisation: str) -> bool:
    return domain == organisation or domain.endswith("." + organisation)


def find_record(author: str, txt: Callable[[str], list[str]]) -> Record | None:
    """The nearest record at or above the domain."""
    record, found_at, organisation = None, "", author
    labels = author.split(".")
    names = [author] + [".".join(labels[i:]) for i in range(max(1, len(labels) - MAX_LABELS + 1), len(labels) - 1)]
    for name in names if author else []:
        tags = _record(txt(f"_dmarc.{name}"))
        if tags is None or tags.get("psd") == "y":
            continue
        if record is None:
            record, found_at = tags, name
        organisation = name
    return None if record is None else Record(record, found_at, organisation)


def _record(texts: list[str]) -> dict[str, str] | None:
    found = [text for text in texts if text.replace(" ", "").lower().startswith("v=dmarc1")]
    if len(found) != 1:
        return None
    pairs = (part.partition("=") for part in found[0].split(";"))
    return {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


def _author_domains(content: bytes) -> set[str]:
    """The domains in From; "" for an author whose domain nobody can spell, and who therefore proves nothing."""
    try:
        first = next(walk(content, Bounds()))
    except TooMuch:
        return set()
    found = set()
    for address in (address for value in first.values("from") for address in headers.authors(value)):
        try:
            found.add(spelling.domain(split_address(address)[1]))
        except ValueError:
            found.add("")
    return found


def _ascii(text: str) -> str:
    local, host = split_address(text)
    try:
        name = spelling.domain(host or local)
        return f"{local}@{name}" if host else name
    except ValueError:
        return text.encode("ascii", "replace").decode("ascii")
