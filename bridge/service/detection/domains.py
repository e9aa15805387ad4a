"""What the name of a domain says about it, without asking anyone.

The lists are short and reviewed by hand: providers of free mailboxes, link shorteners, hosts where anyone can put a
page within minutes, and top-level domains that phishing uses far more often than other mail does. A name on a list is
no proof of anything; the model weighs it. The top-level domains are those of the public suffix list (2024), with all
two-letter codes counted as existing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_TLDS = frozenset((Path(__file__).parent / "data" / "tlds.txt").read_text(encoding="ascii").split())
_SECOND_LEVEL = frozenset(
    "ac co com edu gob gouv gov go gv info ltd me mil ne net nom nhs or org plc sch web".split()
)  # below a country code, these are not names of their own

FREEMAIL = frozenset(
    "gmail.com googlemail.com outlook.com hotmail.com live.com msn.com yahoo.com ymail.com rocketmail.com aol.com "
    "icloud.com me.com mac.com gmx.de gmx.net gmx.com gmx.at web.de t-online.de freenet.de mail.com mail.ru bk.ru "
    "inbox.ru list.ru yandex.ru yandex.com rambler.ru proton.me protonmail.com pm.me tutanota.com tuta.io zoho.com "
    "zohomail.com qq.com 163.com 126.com sina.com naver.com hanmail.net daum.net libero.it virgilio.it tiscali.it "
    "orange.fr wanadoo.fr laposte.net free.fr sfr.fr uol.com.br bol.com.br terra.com.br ig.com.br hotmail.fr "
    "hotmail.co.uk yahoo.co.uk yahoo.fr yahoo.de yahoo.it yahoo.es yahoo.com.br yahoo.co.jp yahoo.co.in live.fr "
    "live.nl live.co.uk outlook.fr outlook.de outlook.es outlook.it hotmail.it hotmail.es hotmail.de seznam.cz wp.pl "
    "o2.pl onet.pl interia.pl abv.bg mailfence.com gmx.fr gmx.ch bluewin.ch comcast.net verizon.net att.net cox.net "
    "btinternet.com rediffmail.com firemail.de email.com usa.com consultant.com dr.com post.com europe.com".split()
)
SHORTENERS = frozenset(
    "bit.ly bitly.com tinyurl.com t.co goo.gl ow.ly is.gd buff.ly rebrand.ly cutt.ly rb.gy shorturl.at t.ly tiny.cc "
    "s.id l.ead.me lnkd.in soo.gd adf.ly bl.ink short.gy v.gd x.co qr.ae qrco.de me2.do urlz.fr u.to clck.ru vk.cc "
    "tr.im dik.si bitly.ws n9.cl acortar.link encurtador.com.br shorturl.asia linktr.ee page.link app.link dub.sh "
    "href.li linkin.bio tny.im surl.li surl.lt kutt.it 2no.co iplogger.org t2m.io tinyurl.gg goo.su s.yam.com".split()
)
HOSTING = frozenset(
    "web.app firebaseapp.com appspot.com run.app cloudfunctions.net blogspot.com sites.google.com docs.google.com "
    "forms.gle script.google.com drive.google.com storage.googleapis.com storage.cloud.google.com googleusercontent.com "
    "amazonaws.com awsapps.com cloudfront.net windows.net azurewebsites.net azureedge.net azurefd.net cloudapp.net "
    "onmicrosoft.com sharepoint.com forms.office.com github.io gitlab.io pages.dev workers.dev r2.dev vercel.app "
    "netlify.app herokuapp.com glitch.me repl.co replit.app surge.sh fly.dev onrender.com railway.app deno.dev "
    "weebly.com weeblysite.com wixsite.com wixstudio.io godaddysites.com square.site webflow.io framer.app "
    "wordpress.com myshopify.com strikingly.com yolasite.com jimdosite.com jimdofree.com site123.me webnode.page "
    "000webhostapp.com 000webhost.com infinityfreeapp.com byethost.com ipfs.io dweb.link cloudflare-ipfs.com "
    "nftstorage.link w3s.link fleek.co translate.goog ngrok.io ngrok-free.app trycloudflare.com duckdns.org "
    "ddns.net hopto.org no-ip.org serveo.net linodeobjects.com digitaloceanspaces.com backblazeb2.com wasabisys.com "
    "myqcloud.com aliyuncs.com typeform.com jotform.com formstack.com surveymonkey.com canva.site gamma.site "
    "notion.site carrd.co mystrikingly.com contabostorage.com plesk.page cprapid.com ukit.me tilda.ws webwave.dev "
    "gitbook.io teachable.com page.tl hpage.com wcomhost.com secureserver.net temp.domains translate.google.com".split()
)
ABUSED_TLDS = frozenset(
    "xyz top click link live online site store shop icu buzz club cyou cfd rest sbs quest monster fun space website "
    "tech pw ga gq cf tk ml work world today life lol bond autos boats homes hair makeup skin beauty mom motorcycles "
    "yachts bid loan win men date review stream download racing party trade webcam science cam vip one host press "
    "support services digital agency rocks guru zip mov su ru cn pro ltd best uno dev-tools run uk.com za.com "
    "co.ua in.net us.com sa.com ru.com ws cc ly email solutions company network bar casa surf fit gdn kim ink".split()
)


def registered(host: str) -> str:
    """The part of a host name that somebody registered: `a.b.example.co.uk` is part of `example.co.uk`."""
    labels = host.rsplit(".", 3)
    if len(labels) < 3:
        return host
    is_deep = len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL
    return ".".join(labels[-3:] if is_deep else labels[-2:])


def name_of(host: str) -> str:
    """The label that was chosen: `example` of `www.example.co.uk`."""
    return registered(host).partition(".")[0]


def exists(host: str) -> bool:
    """Whether it can be a name on the internet at all."""
    name, dot, top = host.rpartition(".")
    if not dot or not name or not _LABELS.fullmatch(host):
        return False
    return (len(top) == 2 and top.isalpha()) or top in _TLDS


_LABELS = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9])?")


def in_list(host: str, names: frozenset[str]) -> bool:
    """Whether the host or a domain above it is listed."""
    while host:
        if host in names:
            return True
        host = host.partition(".")[2]
    return False


def is_abused(host: str) -> bool:
    labels = host.rsplit(".", 2)
    return labels[-1] in ABUSED_TLDS or ".".join(labels[-2:]) in ABUSED_TLDS


_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6,}")
_SWITCHES = re.compile(r"[a-z](?=[0-9])|[0-9](?=[a-z])")
_VOWEL = re.compile("[aeiouy]")
_COMMON_RUNS = re.compile(r"schw|nstr|ghts|rchs|tsch|chst|ngth|rldw|html|http")
_RARE_PAIR = re.compile(  # of letters, in the languages of Europe
    r"(?=b[kqx]|c[bfgjpvwx]|dx|f[kqvxz]|g[qvx]|h[kvxz]|iy|j[bcdfghklmnpqrstvwxyz]|k[qvxz]|l[qx]|m[gjqxz]|p[qvx]"
    r"|q[a-tv-z]|sx|t[qx]|v[bcdfghjkmnpqtwxz]|w[qvxz]|x[bgjkvz]|y[qvz]|z[bcghjnqrsx])"
)


@lru_cache(8192)
def looks_random(label: str) -> bool:
    """A name that nobody can pronounce: `xk3d9qz1`, `vbnqwrtk`."""
    label = label[:63].lower()
    letters = sum(map(str.isalpha, label))
    if len(label) < 6 or letters < 4 or label.startswith("xn--"):
        return False
    if len(_SWITCHES.findall(label)) >= 3 or len(_RARE_PAIR.findall(label)) >= 2:
        return True
    plain = "".join(filter(str.isalpha, label))
    if _CONSONANTS.search(_COMMON_RUNS.sub("a", label)):
        return True
    return len(plain) >= 8 and len(_VOWEL.findall(plain)) <= len(plain) // 6
