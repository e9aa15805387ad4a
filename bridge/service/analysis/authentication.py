"""SPF, DKIM and DMARC, where DNS queries are allowed (`analyzers.authentication.dns: true`).

pyspf evaluates SPF and dkimpy verifies signatures; `dmarc` applies the records of the authors' domains. The libraries
block, so they run in a thread, with one deadline for all lookups of a mail.

A sender chooses the envelope domain and the domains of signatures, and may choose ones whose name servers never
answer, or whose records make a library fail. Those domains then have no result, but the author's domain keeps its
policy: nearly all lookups run side by side (`dns_lookups`), and all end before the analyzer's time is up.
If the DMARC record of the only author's domain cannot be looked up, the analyzer raises and gives no answer either.

Once the record is known, there is always a result. A mail that fails DMARC, but might have passed if every lookup had
been answered, gets `temperror`: it may be honest, and a forger may have chosen a name whose lookup fails. So does a
mail of several authors if there is no answer for one of them, and a mail that could not wait because others were
waiting. A mail whose author is not clear gets `permerror`, unless one of the domains that a reader may see says that
it is forged. So does a mail with an address as its author's name, without quotes, if that domain says that it is
forged.

dkimpy takes quadratic time for some mails. A regular expression, and the arithmetic of a key with a long exponent, hold
the GIL while they run, so they stop every thread of the service. We therefore replace dkimpy's patterns for the body,
and do not give it a header section, a signature or a key that is larger than any that mail servers make: such a
signature counts as invalid. Large mails take turns. A signature that does not cover the whole body, or uses SHA-1,
is not valid either: somebody else may have written the rest.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bridge.errors import ConfigError
from bridge.mail.address import comparable_domain, split_address
from bridge.matching import spelling
from bridge.mime.structure import Bounds
from bridge.service.analysis.author_domains import AuthorDomains, author_domains
from bridge.service.analysis.dmarc import (
    PERMERROR,
    TEMPERROR,
    Proofs,
    Record,
    find_record,
    is_within,
    judge,
    places,
    worst,
)
from bridge.service.analysis.dns_lookups import DnsUnavailable, Lookups, Resolvers, spf_lookup, use_for_spf
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
THREADS = 100  # they mostly wait for DNS, for as long as a sender likes: a few mails must not occupy all of them
LARGE = 256 * 1024  # bytes; hashing a smaller mail takes about as long as a thread holds the GIL anyway (5 ms)
MAX_LARGE = 4  # large mails whose signatures are verified at the same time: the threads are for DNS
# Fractions of the time. In any mail: for silence, and for late answers. In a few mails: for lookups side by side, and
# for all lookups.
FOR_ANY, FOR_SLOW, FOR_MOST, FOR_ALL = 0.15, 0.4, 0.5, 0.8


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
    def __init__(self, settings: Authentication, bounds: Bounds | None = None) -> None:
        """`bounds`: of a header section."""
        try:
            self._dkim: Any = _library("dkim")
            self._canonicalization: Any = _library("dkim.canonicalization")
            self._spf: Any = _library("spf")
            resolver: Any = _library("dns.resolver")
            side_by_side: Any = _library("dns.asyncresolver")
        except ImportError:
            raise ConfigError(
                "analyzers.authentication: libraries are missing; run pip install 'scanbridge[authentication]'"
            ) from None
        self._canonicalization.strip_trailing_whitespace = _strip_trailing_whitespace
        self._canonicalization.compress_whitespace = _compress_whitespace
        self._spf.DNSLookup = spf_lookup  # pyspf's documented way to use another resolver
        self._spf.query.get_explanation = _no_explanation
        self._resolvers = Resolvers(_configured(resolver, settings), _configured(side_by_side, settings))
        self._timeout_s = settings.timeout
        self._is_required = settings.required
        self._bounds = bounds or Bounds()
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
        times = (start + FOR_MOST * self._timeout_s, FOR_ANY * self._timeout_s, start + FOR_SLOW * self._timeout_s)
        dns = Lookups(self._resolvers, *times)
        with closing(dns):
            authors = author_domains(content, self._bounds)
            signatures = self._signatures(content)
            dns.fetch([*_places(authors), _spf_name(mail), *signatures.key_names(authors.names)])
            dns.deadline = start + FOR_ALL * self._timeout_s
            records = _records(authors, dns)
            proofs = Proofs()
            own, others = signatures.by_owner({found.organisation for found in records.values() if found})
            for signature in own:
                self._verify(signature, dns, proofs)
            spf = self._check_spf(mail, dns, proofs)
            for signature in others:
                self._verify(signature, dns, proofs)
        dkim = "pass" if proofs.passed["adkim"] else "fail" if signatures.any else "none"
        return Results(spf, dkim, self._conclude(authors, records, proofs, is_cut_short=dns.is_cut_short))

    def _conclude(
        self, authors: AuthorDomains, records: Mapping[str, Record | None], proofs: Proofs, *, is_cut_short: bool
    ) -> str:
        is_unanswered = not records.keys() >= authors.names - authors.named
        judged = {author: judge(author, proofs, record) for author, record in records.items()}
        results = [result for author, result in judged.items() if author not in authors.named]
        results += [_OF_NAMES[judged[name]] for name in authors.named if judged.get(name) in _OF_NAMES]
        results += [TEMPERROR] if is_unanswered and (is_cut_short or len(authors.names) > 1) else []
        results += [] if authors.is_clear else [PERMERROR]
        result = worst(results)
        if result == TEMPERROR and self._is_required:
            raise DnsUnavailable("dmarc")
        if is_unanswered and not results:  # nobody knows the policy of the only author
            raise DnsUnavailable("dmarc")
        return result

    def _check_spf(self, mail: Mail, dns: Lookups, proofs: Proofs) -> str:
        border = mail.request.border
        if not border.remote_address:
            return ""
        use_for_spf(dns)
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

    def _signatures(self, content: bytes) -> _Signatures:
        if not _has_usual_head(content):
            return _Signatures(any=b"dkim-signature" in content[:MAX_HEAD].lower())
        try:
            verifier = self._verifier(content)
        except Exception:
            return _Signatures(any=True)
        fields = [value for name, value in verifier.headers if name.lower() == b"dkim-signature"]
        found = [
            _Signature(verifier, number, comparable_domain(_tag(value, b"d")), _tag(value, b"s"))
            for number, value in enumerate(fields)
            if len(value) <= MAX_SIGNATURE
        ]
        return _Signatures(bool(fields), found, min(MAX_SIGNATURES, MAX_HASHED // (len(content) + 1) + 1))

    def _verifier(self, content: bytes) -> Any:
        """dkimpy's, which would hold the GIL for a second to split a body of 20 MB into short lines."""
        end = _HEAD_END.search(content)
        verifier = self._dkim.DKIM(content[: end.end()] if end else content)
        if end:
            verifier.body = content[end.end() :].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        return verifier

    def _verify(self, signature: _Signature, dns: Lookups, proofs: Proofs) -> None:
        """Note the domain of a signature if it is valid, or if there is no answer, or no time left, to find out."""
        verifier = signature.verifier
        with ExitStack() as turn:

            def key(name: bytes, timeout: int = 5) -> bytes | None:
                if verifier.signature_fields[b"a"].endswith(b"sha1"):  # RFC 8301 3.1
                    return None
                found = self._key(name.decode("utf-8", "replace"), dns)
                if found:  # dkimpy hashes the mail next
                    turn.enter_context(self._turn(len(verifier.body), dns))
                return found

            try:
                if verifier.verify(signature.number, dnsfunc=key) and self._is_of_whole_body(verifier):
                    proofs.passed["adkim"].append(comparable_domain(verifier.domain.decode("utf-8", "replace")))
            except DnsUnavailable:
                proofs.unsure["adkim"].append(signature.domain)
            except Exception:  # the library fails in many ways on what a sender publishes, not only with its own errors
                return

    def _is_of_whole_body(self, verifier: Any) -> bool:
        """Anybody can append to a body of which only the beginning is signed (RFC 6376 8.2)."""
        tags = verifier.signature_fields
        if b"l" not in tags:
            return True
        policy = self._canonicalization.CanonicalizationPolicy.from_c_value(tags.get(b"c", b"simple/simple"))
        return len(policy.canonicalize_body(verifier.body)) <= int(tags[b"l"])

    @contextmanager
    def _turn(self, size: int, dns: Lookups) -> Iterator[None]:
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

    def _key(self, name: str, dns: Lookups) -> bytes | None:
        """The record of a key; None if there is none, or it would take long to use. Raises what dkimpy raises."""
        record = dns.raw_txt(name)
        hashes = _tag(record, b"h").lower() if record else ""
        if hashes and {"sha256", "*"}.isdisjoint(each.strip() for each in hashes.split(":")):  # RFC 6376 3.6.1
            return None
        key = self._dkim.evaluate_pk(name, record)[0] if record else None
        if isinstance(key, dict) and (
            key["modulus"].bit_length() > MAX_KEY_BITS or key["publicExponent"].bit_length() > MAX_EXPONENT_BITS
        ):
            return None
        return record


@dataclass(frozen=True, slots=True)
class _Signature:
    verifier: Any  # dkimpy's
    number: int
    domain: str
    selector: str


@dataclass(frozen=True, slots=True)
class _Signatures:
    any: bool = False
    found: Sequence[_Signature] = ()
    most: int = 0  # to verify, of the author's domains and of others

    def by_owner(self, organisations: Iterable[str]) -> tuple[list[_Signature], list[_Signature]]:
        """The signatures to verify: those of the author's domains, and some of the others."""
        own: list[_Signature] = []
        others: list[_Signature] = []
        for each in self.found:
            is_own = any(is_within(each.domain, organisation) for organisation in organisations)
            (own if is_own else others).append(each)
        return own[: self.most], others[: self.most]

    def key_names(self, authors: Iterable[str]) -> list[str]:
        """The names of the keys that are needed, as far as is known before the authors' records are."""
        own, others = self.by_owner({".".join(author.rsplit(".", 2)[-2:]) for author in authors if author})
        return [f"{each.selector}._domainkey.{each.domain}" for each in (*own, *others)]


# The results for a domain that is only in a display name by the standard, but is the author's to some programs: the
# sender may be honest.
_OF_NAMES = {"reject": PERMERROR, "quarantine": PERMERROR, TEMPERROR: TEMPERROR}
_CUT = re.compile(rb"[^\t \r]|\r(?!\n)")  # what white space before a line end never contains
_PIECE = 64 * 1024  # bytes, for which other threads wait
_HEAD_END = re.compile(rb"\n\r?\n")


def _strip_trailing_whitespace(content: bytes) -> bytes:
    """Like dkimpy's, but in linear time: dkimpy's pattern looks at a run of spaces again from each space in it."""
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
    """Like dkimpy's, in a twentieth of the time: dkimpy blocks all threads for four seconds on 20 MB of short words."""
    content = content.replace(b"\t", b" ")
    while b"  " in content:
        content = content.replace(b"  ", b" ")
    return content


def _has_usual_head(content: bytes) -> bool:
    end = _HEAD_END.search(content, 0, MAX_HEAD)
    head = content[: end.start()] if end else content
    return len(head) < MAX_HEAD and head.count(b"\n") < MAX_HEAD_LINES


def _tag(value: bytes, name: bytes) -> str:
    """The first of this name in a signature or a key."""
    tags = (part.partition(b"=") for part in value.split(b";"))
    found = [text for tag, _, text in tags if tag.strip() == name]
    return b"".join(found[:1]).strip().decode("utf-8", "replace")


def _places(authors: AuthorDomains) -> list[str]:
    """Where DMARC records may be, the topmost first: a forger of a subdomain chooses how many others there are."""
    return sorted((name for author in authors.names for name in places(author)), key=lambda name: name.count("."))


def _records(authors: AuthorDomains, dns: Lookups) -> dict[str, Record | None]:
    """The records of the domains about which there is an answer."""
    found = {}
    for author in sorted(authors.names):
        with suppress(DnsUnavailable):
            found[author] = find_record(author, dns.txt)
    return found


def _spf_name(mail: Mail) -> str:
    border = mail.request.border
    return split_address(_ascii(border.envelope_from))[1] or _ascii(border.sender_helo or "")


def _configured(module: Any, settings: Authentication) -> Any:
    resolver = module.Resolver(configure=not settings.nameservers)
    if settings.nameservers:
        resolver.nameservers = [address.host for address in settings.nameservers]
        resolver.port = settings.nameservers[0].port
    return resolver


def _library(name: str) -> Any:
    return import_module(name)


def _no_explanation(query: Any, spec: str) -> None:
    """Replaces pyspf's lookup of `exp=`, a text that no one reads here: it could use up the time of all others."""


def _ascii(text: str) -> str:
    local, host = split_address(text)
    try:
        name = spelling.domain(host or local)
        return f"{local}@{name}" if host else name
    except ValueError:
        return text.encode("ascii", "replace").decode("ascii")
