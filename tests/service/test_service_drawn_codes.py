"""Codes that a text or a page draws without a picture: nobody read them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content import drawn_codes
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.optional_formats import FORMATS
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.test_service_documents import tags
from tests.service.test_service_pictures import FOUND, LINK

Modules = list[list[bool]]
EVERYTHING = Limits(formats=tuple(FORMATS))


def modules(text: str = LINK, *, is_inverted: bool = False) -> Modules:
    """Dark ones are true; around them there is a margin."""
    zxingcpp = library("zxingcpp", "pictures")
    library("PIL.Image", "pictures")
    drawn = zxingcpp.create_barcode(text, zxingcpp.BarcodeFormat.QRCode).to_image(scale=1)
    image = library("PIL.Image", "pictures").fromarray(drawn).convert("L")
    pixels, width = image.tobytes(), image.width
    return [[(pixel < 128) != is_inverted for pixel in pixels[at : at + width]] for at in range(0, len(pixels), width)]


def tags_of(text: str, kind: str = "plain", charset: str = "utf-8") -> set[str]:
    head = "From: a@b.example\r\nDate: Mon, 6 Jul 2026 10:00:00 +0000\r\nMessage-ID: <1@b.example>\r\n"
    mail = f"{head}MIME-Version: 1.0\r\nContent-Type: text/{kind}; charset={charset}\r\n\r\n{text}"
    found = inspect(mail.encode(charset, "surrogateescape"), EVERYTHING)
    return found.tags | {f"host:{host}" for host in found.hosts} | {f"limit:{limit}" for limit in found.limits}


def drawn(code: Modules, across: int, down: int, signs: str) -> list[str]:
    """`signs` has one for each combination of modules in a character: the first one is the lowest bit."""
    dark = [[*row, *[False] * across] for row in (*code, *[[False] * len(code[0])] * down)]
    return [
        "".join(
            signs[sum(dark[y + dy][x + dx] << (dy * across + dx) for dy in range(down) for dx in range(across))]
            for x in range(0, len(code[0]), across)
        )
        for y in range(0, len(code), down)
    ]


def full(code: Modules) -> list[str]:
    return drawn(code, 1, 1, " █")


def doubled(code: Modules) -> list[str]:
    return ["".join(2 * sign for sign in line) for line in full(code)]


def shaded(code: Modules) -> list[str]:
    return ["".join(2 * sign for sign in line) for line in drawn(code, 1, 1, "░▓")]


def halves(code: Modules) -> list[str]:
    return drawn(code, 1, 2, " ▀▄█")


def quadrants(code: Modules) -> list[str]:
    return drawn(code, 2, 2, " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█")


def squares(code: Modules) -> list[str]:
    return drawn(code, 1, 1, "⬜⬛")


FORMS = [full, doubled, shaded, halves, quadrants, squares]


@pytest.mark.parametrize("is_inverted", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_code_of_block_characters_was_not_read(form: Callable[[Modules], list[str]], is_inverted: bool) -> None:
    lines = form(modules(is_inverted=is_inverted))
    text = "\r\n".join(["Scan this:", *lines, "Thank you"])
    assert tags_of(text) == FOUND
    assert tags_of("\r\n".join("> " + line for line in lines)) == FOUND
    assert tags_of(f"<p>Scan:</p><pre>{text}</pre>", "html") == FOUND


def as_divs(lines: list[str]) -> str:
    return "".join(f'\r\n   <div class="x">{line.replace(" ", "&nbsp;")}</div>' for line in lines)


def as_breaks(lines: list[str]) -> str:
    return "<p>\r\n" + "<br />\r\n ".join(line.replace(" ", "&nbsp;") for line in lines)


def in_one_line(lines: list[str]) -> str:
    return "<BR>".join(line.replace(" ", "\u00a0") for line in lines)


def as_references(lines: list[str]) -> str:
    return "<br>".join("".join(f"&#{ord(sign)};" for sign in line) for line in lines)


def with_broken_lines(lines: list[str]) -> str:
    text = "<br>".join(line.replace(" ", "&nbsp;").replace("██", "█<b>█</b>\r\n", 1) for line in lines)
    return text.replace("</b>\r\n", "</b><!-- x\r\n -->")


@pytest.mark.parametrize("is_inverted", [False, True])
@pytest.mark.parametrize("page", [as_divs, as_breaks, in_one_line, as_references, with_broken_lines])
def test_a_code_of_lines_in_a_page_was_not_read(page: Callable[[list[str]], str], is_inverted: bool) -> None:
    for form in (full, halves):
        text = page(form(modules(is_inverted=is_inverted)))
        assert tags_of(f"<html><p>Scan:</p>{text}</html>", "html") == FOUND


def test_a_code_in_other_charsets_was_not_read() -> None:
    text = "\r\n".join(halves(modules()))
    assert tags_of(text, charset="gb18030") == FOUND
    assert tags_of(text, charset="cp437") == FOUND


def test_a_code_is_not_decoded_in_the_event_loop() -> None:
    mail = "\r\n" + "\r\n".join(halves(modules()))
    with pytest.raises(NeedsProcess):
        inspect(mail.encode(), replace(EVERYTHING, archives=False))


def test_codes_are_not_read_if_the_format_is_switched_off() -> None:
    mail = "\r\n" + "\r\n".join(halves(modules()))
    assert "picture:qr-link" not in inspect(mail.encode(), Limits(archives=False)).tags


def test_bars_of_block_characters_are_no_code() -> None:
    chart = "\r\n".join(f"{name:>3} {'█' * (name * 7 % 30)}▌ {name}" for name in range(40))
    assert tags_of(chart) == set()


def test_a_code_without_a_link_has_no_tag() -> None:
    assert tags_of("\r\n".join(halves(modules("WIFI:T:WPA;S:guest.example;P:secret;;")))) == set()


def test_megabytes_of_block_characters_are_bounded() -> None:
    modules()
    noise = random.Random(1)
    lines = ["".join(noise.choices(" ▀▄█", k=33)) if n % 18 else "x" for n in range(6_000)]
    found: set[str] = set()
    assert fair_cpu_s(lambda: found.update(tags_of("\r\n".join(lines)))) < 3
    assert "picture:not-read" in found


def test_large_drawings_are_bounded() -> None:
    modules()
    noise = random.Random(1)
    lines = ["".join(noise.choices(" ▀▄█", k=500)) if n % 513 else "x" for n in range(700)]
    found: set[str] = set()
    assert fair_cpu_s(lambda: found.update(tags_of("\r\n".join(lines)))) < 3
    assert "picture:not-read" in found


def test_lines_above_a_code_do_not_hide_it() -> None:
    bars = [40 * "█"] * 512
    assert tags_of("\r\n".join([*bars, *halves(modules())])) >= FOUND


def test_megabytes_of_references_are_bounded() -> None:
    page = "<p>" + 30_000 * (20 * "&#9608;" + "<br>")
    with pytest.raises(TooMuch):
        list(drawn_codes.drawn_members(page, Budget(work=10**6)))


def test_the_budget_of_pictures_is_charged() -> None:
    text = "\n".join(halves(modules()))
    budget = Budget(pixels=1000)
    members = list(drawn_codes.drawn_members(text, budget))
    assert [member.tags for member in members] == [("picture:not-read",)]


# Tables


def runs(row: list[bool]) -> list[tuple[bool, int]]:
    return [(is_dark, len(list(same))) for is_dark, same in itertools.groupby(row)]


def cell_for_each(code: Modules) -> str:
    rows = ("".join(f"<td width=4 height=4 bgcolor={'#000000' if x else '#ffffff'}></td>" for x in row) for row in code)
    return f"<table cellspacing=0>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def with_styles(code: Modules) -> str:
    dark, light = "background: rgb(20, 20, 90)", "background-color:WhiteSmoke"
    rows = ("".join(f'<TD style="width:4px;{dark if x else light}">&nbsp;</TD>' for x in row) for row in code)
    return f"<TABLE>{''.join(f'<TR>{row}</TR>' for row in rows)}</TABLE>"


def only_dark_ones(code: Modules) -> str:
    rows = ("".join("<td style='background:#111'>" if x else "<td>" for x in row) for row in code)
    return f"<table>{''.join(f'<tr>{row}' for row in rows)}</table>"


def only_light_ones(code: Modules) -> str:
    rows = ("".join("<td>" if x else "<td style='background:#fff'>" for x in row) for row in code)
    return f"<table bgcolor=black>{''.join(f'<tr>{row}' for row in rows)}</table>"


def with_a_style_against_the_attribute(code: Modules) -> str:
    colour = {True: "none repeat scroll 0 0 #102030", False: "white none"}
    rows = ("".join(f'<td bgcolor=#888 style="background: {colour[x]}">' for x in row) for row in code)
    return f"<table>{''.join(f'<tr>{row}' for row in rows)}</table>"


def in_columns(code: Modules) -> str:
    colour = {True: "black", False: "white"}
    rows = ("".join(f'<td colspan="{n}" bgcolor="{colour[x]}"></td>' for x, n in runs(row)) for row in code)
    return f"<table>{''.join(f'<tr height=4>{row}</tr>' for row in rows)}</table>"


def table_for_each_row(code: Modules) -> str:
    colour = {True: "000", False: "eee"}
    rows = ("".join(f'<td width="{4 * n}" style="background:#{colour[x]}">' for x, n in runs(row)) for row in code)
    return "".join(f"<table><tr>{row}</tr></table>" for row in rows)


def nested(code: Modules) -> str:
    rows = table_for_each_row(code).replace("</table>", "</table></td></tr><tr><td>")
    return f"<table><tr><td bgcolor=#fafafa><table><tr><td>{rows}</td></tr></table></td></tr></table>"


TABLES = [
    with_a_style_against_the_attribute,
    cell_for_each,
    with_styles,
    only_dark_ones,
    only_light_ones,
    in_columns,
    table_for_each_row,
    nested,
]


@pytest.mark.parametrize("is_inverted", [False, True])
@pytest.mark.parametrize("form", TABLES)
def test_a_code_of_table_cells_was_not_read(form: Callable[[Modules], str], is_inverted: bool) -> None:
    page = "<html><p>Scan this:</p>" + form(modules(is_inverted=is_inverted)) + "<p>Thank you</html>"
    assert tags_of(page, "html") == FOUND


def without_margin(code: Modules) -> Modules:
    rows = [row for row in code if any(row)]
    columns = [x for x in range(len(code[0])) if any(row[x] for row in rows)]
    return [[row[x] for x in columns] for row in rows]


@pytest.mark.parametrize("form", TABLES)
def test_a_code_of_table_cells_without_a_margin_was_not_read(form: Callable[[Modules], str]) -> None:
    code = without_margin(modules())
    assert tags_of("<html>" + form(code), "html") == FOUND
    assert tags_of("<html>" + form([[not x for x in row] for row in code]), "html") == FOUND


def test_coloured_cells_of_a_calendar_are_no_code() -> None:
    noise = random.Random(1)
    colours = ["#fff", "#dddddd", "lightblue", "rgb(250, 200, 200)"]
    day = "<td style='background-color:{}'>{}</td>"
    weeks = ("".join(day.format(noise.choice(colours), n) for n in range(31)) for _ in range(40))
    page = "<html><table>" + "".join(f"<tr><th>x</th>{week}</tr>" for week in weeks) + "</table>"
    assert drawn_codes.may_be_drawn(page)
    assert tags_of(page, "html") == set()


def test_the_tables_of_a_newsletter_do_not_take_long() -> None:
    row = "<tr><td bgcolor=#eee><table><tr><td bgcolor='#fff'>Text</td><td>More</td></tr></table></td></tr>"
    assert not drawn_codes.may_be_drawn("<html><table>" + 500 * row + "</table>")


def test_megabytes_of_table_cells_are_bounded() -> None:
    modules()
    noise = random.Random(1)
    cells = ["<td bgcolor=#000>", "<td bgcolor=#fff>"]
    rows = ["<tr>" + "".join(noise.choices(cells, k=100 + n // 30 % 2)) for n in range(600)]
    page = "<html><table>" + "\r\n".join(rows)
    assert fair_cpu_s(lambda: list(drawn_codes.drawn_members(page, Budget()))) < 3
    part = "<html><table>" + "".join(rows[:300])
    assert "picture:not-read" in {tag for m in drawn_codes.drawn_members(part, Budget(pixels=10**6)) for tag in m.tags}
    with pytest.raises(TooMuch):
        list(drawn_codes.drawn_members(part, Budget(work=10**6)))


# SVG


def dark_runs(code: Modules) -> list[tuple[int, int, int]]:
    found = []
    for y, row in enumerate(code):
        x = 0
        for is_dark, count in runs(row):
            if is_dark:
                found.append((x, y, count))
            x += count
    return found


def rectangles(code: Modules) -> str:
    found = (f'<rect x="{10 * x}" y="{10 * y}" width="{10 * n}" height="10"/>' for x, y, n in dark_runs(code))
    return "".join(found)


def rectangles_with_a_prefix(code: Modules) -> str:
    cells = ((x, y, dark) for y, row in enumerate(code) for x, dark in enumerate(row))
    form = '<svg:rect x="{}mm" y="{}mm" width="1mm" height="1mm" fill="{}" />'
    return "".join(form.format(x, y, "#000000" if dark else "#fff") for x, y, dark in cells)


def a_rectangle_that_is_used(code: Modules) -> str:
    found = (f'<use x="{x + i}" y="{y}" href="#a"/>' for x, y, n in dark_runs(code) for i in range(n))
    return '<rect fill="#fff" width="100%" height="100%"/><rect width="1" height="1" id="a"/>' + "".join(found)


def relative_path(code: Modules) -> str:
    return f'<path d="{"".join(f"M{x},{y}h{n}v1h-{n}z" for x, y, n in dark_runs(code))}"/>'


def absolute_path(code: Modules) -> str:
    data = "".join(f"M{x},{y}H{x + n}V{y + 1}H{x}z" for x, y, n in dark_runs(code))
    return f'<path d="{data}" fill="#000000" fill-rule="nonzero"/>'


def lines(code: Modules) -> str:
    """As segno and qrcode for JavaScript write them: from the end of each run to the next one."""
    data, at = "", (0.0, 0.0)
    for x, y, n in dark_runs(code):
        data += f"m{x - at[0]:g} {y + 0.5 - at[1]:g}h{n}"
        at = (x + n, y + 0.5)
    return f'<path fill="#ffffff" d="M0 0h29v29H0z"/><path stroke="#000" transform="scale(4)" d="{data}"/>'


VECTORS = [rectangles, rectangles_with_a_prefix, a_rectangle_that_is_used, relative_path, absolute_path, lines]


@pytest.mark.parametrize("form", VECTORS)
def test_a_code_in_svg_was_not_read(form: Callable[[Modules], str]) -> None:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 29 29">{form(modules())}</svg>'
    assert tags_of(f"<html><p>Scan this:</p>{svg}</html>", "html") >= FOUND
    assert set(FOUND) <= tags(svg.encode(), "a.svg")
    dark = f'<svg><rect width="100%" height="100%"/><g fill="#ffffff">{form(without_margin(modules()))}</g></svg>'
    if form in (rectangles, relative_path):
        assert tags_of(f"<html>{dark}</html>", "html") >= FOUND


def test_an_inverted_code_in_svg_was_not_read() -> None:
    for form in (rectangles, absolute_path):
        svg = form(modules(is_inverted=True))
        assert tags_of(f"<html><svg>{svg}</svg></html>", "html") >= FOUND


def test_a_drawing_is_no_code() -> None:
    bars = "".join(f'<rect x="{9 * n}" y="{n * 7 % 50}" width="8" height="{100 - n * 7 % 50}"/>' for n in range(99))
    logo = '<path d="' + "M1 2h3c1 2 3 4 5 6z" * 99 + '"/>'
    assert tags_of(f"<html><svg>{bars}{logo}</svg></html>", "html") == set()


def test_odd_numbers_in_svg_do_no_harm() -> None:
    modules()
    for number in ("", ".", "-", "1e999", "9" * 400, "nan", "0", "-5", "999999999", "0.000000001"):
        shapes = f'<rect x="{number}" y="1" width="{number}" height="2" fill="x"/><path d="Mh{number}v{number}z1 2l3"/>'
        page = f"<svg>{100 * shapes}<rect width='5' height='{number}'/><rect x='{number}' width='1' height='1'/></svg>"
        assert not any(member.links for member in drawn_codes.drawn_members(page, Budget()))


def test_megabytes_of_rectangles_are_bounded() -> None:
    modules()
    noise = random.Random(1)
    small = "".join(f"M{noise.randrange(200)},{noise.randrange(200)}h1v1h-1z" for _ in range(12_000))
    large = 8_000 * '<rect width="250" height="250"/>'
    page = f'<svg><path d="{small}"/></svg><svg>{large}<rect width="1" height="1"/></svg>'
    assert fair_cpu_s(lambda: list(drawn_codes.drawn_members(page, Budget()))) < 3
    with pytest.raises(TooMuch):
        list(drawn_codes.drawn_members(page, Budget(work=10**6)))
