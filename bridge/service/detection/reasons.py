"""Why a mail looks like phishing, in sentences for people: postmasters, and users who read their digest.

Parts of a sentence come from the mail, so its sender chose them: a caller that prints them must make them safe for a
terminal or a page.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.api.scanning import MAX_REASONS

# In the order of what a reader wants to know first. {0} and {1} are what the signal was found in.
_SENTENCES: dict[str, str] = {
    "impersonation:display-name": "claims to be {0}, sent from {1}",
    "impersonation:domain": "the sender's domain {1} imitates {0}",
    "impersonation:local-part": "the sender's address claims to be {0}, but its domain is {1}",
    "impersonation:name-is-domain": "shows {0} as the sender, sent from {1}",
    "impersonation:recipient": "pretends to come from the recipient's own organisation",
    "impersonation:subject": "the subject is about {0}, but the mail was sent from {1}",
    "url:shows-other-host": "the link shown as {0} leads to {1}",
    "url:mismatch": "a link shows a different host from the one it leads to",
    "url:lookalike": "the link host {1} imitates {0}",
    "url:not-the-brand": "none of the links lead to {0}; most lead to {1}",
    "url:mostly-not-the-brand": "most links lead to {1}, not to {0}",
    "picture:qr-link": "a QR code leads to {0}",
    "attachment:credential-form": "an attached page asks for a password",
    "attachment:form": "an attached page contains a form",
    "attachment:script": "an attached page runs a script",
    "attachment:redirect": "an attached page redirects to another one immediately",
    "attachment:page": "the attachment {0} is a web page",
    "attachment:calendar-only": "the mail consists only of a calendar invitation",
    "attachment:document-little-text": "hardly any text, only the attachment {0}",
    "html:password-field": "the mail itself asks for a password",
    "html:form": "the mail itself contains a form",
    "html:hidden-text": "hides more text than it shows ({0} characters, {1} shown)",
    "html:much-hidden-text": "hides {0} characters of text",
    "html:picture-link": "a picture with a link instead of text",
    "html:picture-little-text": "a picture with hardly any text",
    "html:split-words": "invisible characters split {0} words",
    "html:letters-as-numbers": "{0} letters are written as numbers in the page's source",
    "html:cut": "is too long, or has too many links, to be read completely",
    "html:script": "the mail contains a script",
    "html:redirect": "the mail redirects to another page immediately",
    "html:base": "the mail changes where its links lead",
    "url:recipient": "a link to {0} contains the recipient's address",
    "url:redirect": "a link to {0} leads on to {1}",
    "url:shortener": "the shortened link {0} hides where it leads",
    "url:free-hosting": "links to {0}, where anyone can put a page",
    "url:ip-host": "a link leads to an IP address instead of a name",
    "url:random-host": "the link host {0} looks random",
    "url:random-subdomain": "part of the link host {0} looks random",
    "url:abused-tld": "the link host {0} is in a top-level domain that phishing often uses",
    "url:deep-host": "the link host {0} has many parts",
    "url:userinfo": "a link has another name before its host",
    "url:punycode": "a link leads to an internationalised host name",
    "url:port": "a link to {0} names a port",
    "url:escaped": "a link to {0} hides its address behind escapes",
    "url:mailto-only": "the only thing the reader can do is write a mail",
    "sender:malformed": "the sender's address is malformed",
    "sender:impossible-domain": "the sender's domain {0} cannot exist",
    "sender:freemail-role": 'calls itself "{0}", but uses a free mailbox at {1}',
    "sender:freemail-reply": "replies go to a free mailbox at {0}, not to {1}",
    "sender:random-reply": "replies go to {0}, which looks random",
    "sender:random-domain": "the sender's domain {0} looks random",
    "sender:random-subdomain": "part of the sender's domain {0} looks random",
    "sender:random-envelope": "the domain {0} that sent the mail looks random",
    "sender:random-name": "the sender's address {0} looks random",
    "sender:hosting-domain": "the sender's domain {0} belongs to a hosting service",
    "sender:deep-domain": "the sender's domain {0} has many parts",
    "sender:abused-tld": "the sender's domain ends in .{0}, which phishing often uses",
    "sender:unaligned": "neither a signature nor the envelope confirms {0}",
    "header:display-address": "shows a different address from the one it was sent from",
    "header:lookalike-letters": "uses letters that look like others",
    "header:raw-8bit": "the header is not encoded the way mail programs encode it",
    "header:needless-encoding": "the header hides plain words in an encoding",
    "subject:recipient": "the subject contains the recipient's address",
    "subject:false-reply": "pretends to be a reply",
    "text:wallet": "contains the address of a cryptocurrency wallet",
    "text:extortion": 'reads like extortion ("{0}")',
    "text:credentials": 'asks for an account or password ("{0}")',
    "subject:credentials": 'the subject is about an account or password ("{0}")',
    "text:urgent": 'puts pressure on the reader ("{0}")',
    "subject:urgent": 'the subject puts pressure on the reader ("{0}")',
    "text:prize": 'promises a prize ("{0}")',
    "subject:prize": 'the subject promises a prize ("{0}")',
}


def sentences(signals: Mapping[str, str], weights: Mapping[str, float], limit: int = MAX_REASONS) -> list[str]:
    """The most important reasons: signals that count for something, in the order above."""
    known = [tag for tag in _SENTENCES if tag in signals and weights.get(tag, 0.0) > 0]
    return [_sentence(tag, signals[tag]) for tag in known[:limit]]


def meaning_of(tag: str) -> str:
    """The sentence in general, for documents."""
    return _SENTENCES.get(tag, "").format("X", "Y")


def _sentence(tag: str, found_in: str) -> str:
    first, _, second = found_in.partition("|")
    return _SENTENCES[tag].format(_shown(first), second or "an unknown domain")


def _shown(name: str) -> str:
    """Brands are kept in lower case."""
    return _SPELLED.get(name, name.title() if name.replace(" ", "").isalpha() and len(name) > 3 else name)


_SPELLED = {
    "paypal": "PayPal",
    "dhl": "DHL",
    "ups": "UPS",
    "usps": "USPS",
    "fedex": "FedEx",
    "linkedin": "LinkedIn",
    "icloud": "iCloud",
    "whatsapp": "WhatsApp",
    "youtube": "YouTube",
    "metamask": "MetaMask",
    "docusign": "DocuSign",
    "github": "GitHub",
    "ebay": "eBay",
    "hsbc": "HSBC",
    "bbva": "BBVA",
    "adac": "ADAC",
    "aarp": "AARP",
    "dpd": "DPD",
    "gls": "GLS",
    "hmrc": "HMRC",
    "postnl": "PostNL",
    "mcafee": "McAfee",
    "godaddy": "GoDaddy",
    "onedrive": "OneDrive",
    "aliexpress": "AliExpress",
    "wetransfer": "WeTransfer",
}
