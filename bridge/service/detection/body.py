"""Signals from what a mail shows, hides, attaches and asks for.

The phrases are in the languages in which phishing is common: English, German, Portuguese, Spanish, French, Italian
and Dutch. They are searched for in the subject and the beginning of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from bridge.service.detection import brands
from bridge.service.detection.material import Material
from bridge.service.detection.page import Page
from bridge.service.detection.sender import Sender

MAX_TEXT = 6000  # characters of the text in which phrases are searched for
MUCH_HIDDEN = 200  # characters
LITTLE_TEXT = 250
SOME_REFERENCES = 20
_SPACES = re.compile(r"\s+")


def _any(*words: str) -> re.Pattern[str]:
    return re.compile(r"(?<!\w)(?:" + "|".join(words) + ")")


URGENT = _any(
    "urgent", "immediate(?:ly)? action", "action required", "final (?:notice|warning|reminder)", "last (?:chance|warning)",
    r"within \d+ ?(?:hours|hrs|days)", r"in \d+ hours", "expires? (?:today|soon)", "suspend", "deactivat", "terminat",
    "will be (?:closed|deleted|blocked|disabled|locked)", "limited (?:time|access)", "dringend", "letzte (?:warnung|chance)",
    "gesperrt", "sperrung", r"innerhalb (?:von )?\d+", "umgehend", "bloquead", "bloqueio", "suspens", "cancelad", "urgente",
    r"em at\w \d+ horas", "vence hoje", "derni[eè]re chance", "dernier avertissement", r"sous \d+", "bloqu[eé]",
    "ultimo avviso", "sospes", "scade", "laatste", "geblokkeerd", "opgeschort", "verloopt",
)
CREDENTIALS = _any(
    "verify (?:your|you)", "confirm (?:your|you)", "validate your", "update your (?:account|payment|billing|information|details)",
    "(?:your )?password", "log ?in to your", "sign ?in to", "unusual (?:sign|activity|login)", "account (?:has been|is|was|will)",
    "mailbox", "keep (?:current|same) password", "re-?activate", "seed phrase", "recovery phrase", "wallet", "2fa",
    "konto best[aä]tigen", "best[aä]tigen sie", "verifizier", "aktualisieren sie", "passwort", "zugangsdaten",
    "confirme (?:seu|sua|os)", "atualiz(?:e|ar) (?:seu|sua|os)", "senha", "recadastr", "token", "verifique su", "contrase",
    "actualice", "confirmez", "mot de passe", "v[eé]rifie[rz]", "mettre [aà] jour", "verifica il", "aggiorna", "conferma",
    "bevestig", "wachtwoord", "inloggen",
)
PRIZE = _any(
    "congratulations", "you(?:'ve| have)? (?:been )?(?:won|win|selected|chosen)", "winner", "free gift", "claim (?:your|now)", "reward",
    "gift ?card", "giveaway", "airdrop", "bonus", "lottery", "jackpot", "herzlichen gl[uü]ckwunsch", "gewinn", "gutschein",
    "ausgew[aä]hlt", "gratis", "pr[eê]mio", "parab[eé]ns", "ganhou", "resgat", "pontos", "felicidades", "ganador", "sorteo",
    "f[eé]licitations", "gagn", "cadeau", "bon d'achat", "congratulazioni", "vinto", "premio", "gefeliciteerd", "gewonnen",
)
MONEY = _any(
    "inherit", "next of kin", "beneficiary", "million (?:dollars|usd|euro|pounds)", r"\$ ?\d+(?:[.,]\d+)? ?million", "wire transfer",
    "atm card", "compensation", "bitcoin", "btc", "ethereum", "crypto", "usdt", "invest", "loan", "donation", "deceased",
    "western union", "consignment", "fund(?:s)? transfer", "widow", "barrister", "erbschaft", "darlehen", "heran[cç]a", "pix",
)
PARCEL = _any(
    "your (?:package|parcel|delivery|shipment|order)", "delivery (?:attempt|failed|fee|address)", "customs", "tracking number",
    "ihr paket", "ihre sendung", "zustell", "lieferung", "zoll", "sua encomenda", "seu pedido", "taxa", "alf[aâ]ndeg", "entrega",
    "su paquete", "env[ií]o", "votre colis", "livraison", "il tuo pacco", "spedizione", "uw pakket", "bezorg",
)
INVOICE = _any(
    "invoice", "payment (?:advice|due|failed|declined|receipt)", "overdue", "past due", "remittance", "purchase order", "refund",
    "your (?:subscription|membership|plan)", "renew", "auto-?renew", "rechnung", "mahnung", "zahlung", "r[uü]ckerstattung",
    "fatura", "boleto", "nota fiscal", "pagamento", "d[eé]bito", "factura", "pago", "facture", "paiement", "remboursement",
    "fattura", "rimborso", "factuur", "betaling",
)
ADULT = _any(
    "viagra", "cialis", "sexy?", "dating", "singles?", "nackte", "nude", "erectile", "horny", "porn", "hot (?:girls|women|russian)",
    "male enhancement", "weight loss", "keto", "abnehmen", "fat ?burn", "gummies", "cbd", "hearing aid", "timeshare",
)
_WALLET = re.compile(r"(?<![a-z0-9])(?:bc1[a-z0-9]{25,62}|[13][a-km-zA-HJ-NP-Z1-9]{26,34}|0x[a-fA-F0-9]{40})(?![a-z0-9])")
_BUTTON = _any(
    "click (?:here|below|the)", "verify", "confirm", "sign in", "log ?in", "update (?:now|account|payment)", "claim", "get started",
    "review", "view (?:document|message|file|invoice)", "download", "track", "jetzt", "hier klicken", "klicken sie", "clique aqui",
    "acessar", "acesse", "resgatar", "haga clic", "cliquez", "clicca", "klik hier",
)
_IN_SUBJECT = {
    "subject:urgent": URGENT,
    "subject:credentials": CREDENTIALS,
    "subject:prize": PRIZE,
    "subject:money": MONEY,
    "subject:parcel": PARCEL,
    "subject:invoice": INVOICE,
    "subject:adult": ADULT,
}
# The same in the text: words, and pairs of words joined by a space. Compared as sets, which is fast in a long text.
IN_TEXT: dict[str, frozenset[str]] = {
    tag: frozenset(phrase.strip() for phrase in phrases.split(","))
    for tag, phrases in {
        "text:urgent": "urgent,immediately,action required,final notice,final warning,last warning,last chance,expires today,"
        "suspended,suspension,deactivated,deactivation,terminated,termination,be closed,be deleted,be blocked,be disabled,"
        "permanently,expire soon,24 hours,48 hours,72 hours,dringend,letzte warnung,gesperrt,sperrung,umgehend,bloqueado,bloqueada,"
        "bloqueio,suspensa,suspenso,cancelado,cancelada,urgente,vence hoje,suspendu,suspendue,sospeso,geblokkeerd,verloopt",
        "text:credentials": "verify your,confirm your,validate your,update your,your password,unusual sign,unusual activity,your mailbox,"
        "your account,account has,same password,current password,reactivate,seed phrase,recovery phrase,your wallet,your identity,"
        "konto best\u00e4tigen,best\u00e4tigen sie,verifizieren,verifizierung,aktualisieren sie,ihr konto,zugangsdaten,ihr passwort,"
        "confirme seu,confirme sua,atualize seu,atualizar seu,sua conta,sua senha,recadastramento,verifique su,su cuenta,contrase\u00f1a,"
        "confirmez votre,votre compte,votre mot,v\u00e9rifiez votre,il tuo,tuo account,conferma,bevestig uw,uw account,wachtwoord",
        "text:prize": "congratulations,winner,winners,free gift,claim your,claim now,your reward,gift card,giftcard,giveaway,airdrop,bonus,"
        "lottery,jackpot,been selected,been chosen,have won,you won,gl\u00fcckwunsch,gewinner,gewonnen,gutschein,ausgew\u00e4hlt,gratis,"
        "pr\u00eamio,parab\u00e9ns,ganhou,resgatar,resgate,pontos,felicidades,ganador,sorteo,f\u00e9licitations,gagnant,cadeau,"
        "congratulazioni,vinto,premio,gefeliciteerd",
        "text:money": "inheritance,next of,beneficiary,million dollars,million usd,million united,wire transfer,atm card,compensation,bitcoin,"
        "btc,ethereum,crypto,usdt,investment,loan,donation,deceased,western union,consignment,widow,barrister,erbschaft,darlehen,"
        "heran\u00e7a,pix",
        "text:parcel": "your package,your parcel,your delivery,your shipment,delivery attempt,delivery failed,customs,tracking number,ihr paket,"
        "ihre sendung,zustellung,lieferung,sua encomenda,seu pedido,alf\u00e2ndega,su paquete,votre colis,livraison,tuo pacco,uw pakket",
        "text:invoice": "your invoice,attached invoice,payment due,payment failed,payment declined,overdue,past due,remittance,purchase order,"
        "refund,your subscription,your membership,auto renew,renewal,rechnung,mahnung,zahlung,r\u00fcckerstattung,fatura,boleto,pagamento,"
        "factura,facture,paiement,remboursement,fattura,rimborso,factuur,betaling",
        "text:extortion": "recorded you,your webcam,your camera,have hacked,compromising,masturbating,porn sites,your contacts",
        "text:greeting": "dear customer,dear client,dear user,dear member,dear valued,dear account,dear beneficiary,dear friend,dear sir,"
        "dear winner,dear beloved,hello dear,geehrter kunde,geehrte kundin,lieber kunde,prezado,prezada,caro cliente,estimado,estimada,"
        "cher client,ch\u00e8re cliente,gentile cliente,beste klant,geachte klant",
        "text:adult": "viagra,cialis,sexy,sex,dating,singles,nackte,nude,erectile,horny,porn,hot girls,russian girls,weight loss,keto,"
        "abnehmen,gummies,cbd,hearing aid,timeshare,testosterone",
        "text:call": "toll free,call us,call our,call now,call immediately",
    }.items()
}
_GROUP_OF = {phrase: tag for tag, phrases in IN_TEXT.items() for phrase in phrases}
_PHRASES = frozenset(_GROUP_OF)
_WORD = re.compile(r"\w+")
_PAGE_NAME = re.compile(r"\.(?:s?html?|xht(?:ml)?|mht(?:ml)?|svg)\s*$")
_DOCUMENT = re.compile(r"\.(?:pdf|docx?|xlsx?|one)\s*$")


def text_of(material: Material) -> str:
    """What a reader sees first, in lower case."""
    for page in material.pages:
        if page.text:
            return page.text[:MAX_TEXT]
    return _SPACES.sub(" ", material.plain[: 2 * MAX_TEXT]).strip().lower()[:MAX_TEXT]


def signals(material: Material, sender: Sender, text: str) -> Iterator[tuple[str, str]]:
    for page in material.pages:
        yield from _shown(page)
    for page in material.attached_pages:
        yield from _attached(page)
    yield from _files(material, text)
    yield from _phrases(material, sender, text)


def _shown(page: Page) -> Iterator[tuple[str, str]]:
    if page.hidden > MUCH_HIDDEN and page.hidden > len(page.text):
        yield "html:hidden-text", f"{page.hidden}|{len(page.text)}"
    elif page.hidden > 3 * MUCH_HIDDEN and 2 * page.hidden > len(page.text):
        yield "html:much-hidden-text", str(page.hidden)
    if page.linked_pictures and len(page.text) < LITTLE_TEXT:
        yield "html:picture-link", str(len(page.text))
    if page.pictures and not page.linked_pictures and len(page.text) < LITTLE_TEXT and page.links:
        yield "html:picture-little-text", str(len(page.text))
    if page.has_form:
        yield "html:form", ""
    if page.asks_password:
        yield "html:password-field", ""
    if page.runs_script:
        yield "html:script", ""
    if page.has_redirect:
        yield "html:redirect", ""
    if page.has_base:
        yield "html:base", ""
    if page.letter_references >= SOME_REFERENCES:
        yield "html:letters-as-numbers", str(page.letter_references)
    if page.split_words >= 3:
        yield "html:split-words", str(page.split_words)
    if len(page.links) == 1 and len(page.text) < 4 * LITTLE_TEXT:
        yield "html:one-link", ""
    if any(_BUTTON.match(link.shown.strip(" >»→[({")) for link in page.links):
        yield "html:button", ""


def _attached(page: Page) -> Iterator[tuple[str, str]]:
    if page.has_form and page.asks_password:
        yield "attachment:credential-form", ""
    elif page.has_form:
        yield "attachment:form", ""
    if page.runs_script:
        yield "attachment:script", ""
    if page.has_redirect:
        yield "attachment:redirect", ""


def _files(material: Material, text: str) -> Iterator[tuple[str, str]]:
    page = next((name for name in material.names if _PAGE_NAME.search(name)), "")
    if page:
        yield "attachment:page", page
    if "text/calendar" in material.types and not text:
        yield "attachment:calendar-only", ""
    document = next((name for name in material.names if _DOCUMENT.search(name)), "")
    if document and len(text) < LITTLE_TEXT:
        yield "attachment:document-little-text", document


def _phrases(material: Material, sender: Sender, text: str) -> Iterator[tuple[str, str]]:
    subject = sender.subject.lower()
    for tag, pattern in _IN_SUBJECT.items():
        if found := pattern.search(subject):
            yield tag, found[0]
    words = _WORD.findall(text)
    for phrase in _PHRASES.intersection((*words, *map(" ".join, pairwise(words)))):
        yield _GROUP_OF[phrase], phrase
    if "0x" in text or "bc1" in text or "btc" in text or "bitcoin" in text:
        if _WALLET.search(text) or _WALLET.search(material.plain[:MAX_TEXT]):
            yield "text:wallet", ""
    brand = brands.mentioned(text)
    if brand and not brands.owns(brand, sender.domain):
        yield "text:brand", f"{brand}|{sender.domain}"
    if not sender.subject.strip():
        yield "subject:empty", ""
