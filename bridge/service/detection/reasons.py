"""Why a mail looks like phishing, in sentences for people: postmasters, and users who read their digest.

Parts of a sentence come from the mail, so its sender chose them: a caller that prints them must make them safe for a
terminal or a page.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.api.reason_texts import SENTENCES, UNKNOWN_DOMAIN
from bridge.api.scanning import MAX_REASONS


def sentences(signals: Mapping[str, str], weights: Mapping[str, float], limit: int = MAX_REASONS) -> list[str]:
    """The most important reasons: signals that count for something, in the order of the table."""
    known = [tag for tag in SENTENCES if tag in signals and weights.get(tag, 0.0) > 0]
    return [_sentence(tag, signals[tag]) for tag in known[:limit]]


def meaning_of(tag: str) -> str:
    """The sentence in general terms, for documents."""
    return SENTENCES.get(tag, "").format("X", "Y")


def _sentence(tag: str, found_in: str) -> str:
    first, _, second = found_in.partition("|")
    return SENTENCES[tag].format(_shown(first), second or UNKNOWN_DOMAIN)


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
