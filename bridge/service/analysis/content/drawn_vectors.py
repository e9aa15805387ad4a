"""QR codes in SVG, as the libraries for codes write them: rectangles, or a path that consists of them.

A path may also be lines that are as thick as a module. Nothing is known of curves, of transformations (most often the
same one for all modules) and of style sheets. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from bridge.service.analysis.content.drawn_tables import MAX_MODULES, MIN_MODULES, grey_of
from bridge.service.analysis.content.unpacking import Budget

_MIN_SHAPES = 60  # of the smallest code, if each run of dark modules is one
_TAG_WORK, _COMMAND_WORK, _NUMBER_WORK = 200, 200, 80  # for each tag, and for each command and number in a path
_MODULE = 4  # pixels
_MAX_AREA = 8  # times as much as the picture: more is painted over and over
_SVG = re.compile(r"<(?:[a-z0-9]{1,20}:)?svg[\s>]", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(?:[a-z0-9]{1,20}:)?(rect|path|use|g)\b([^<>]*)", re.IGNORECASE)
_PATH_RUN = re.compile(r"[hH]\s?-?[0-9.]{1,9}\s?[vVmM]\s?-?[0-9.]")  # not a word or Base64
_NAMES = ("<rect", ":rect", "<RECT", "<use", ":use")
_VALUE = re.compile(r"(?<![\w-])(x|y|width|height|stroke-width)\s{0,9}=\s{0,9}[\"']\s{0,9}(-?[0-9.]{1,20})(%?)")
_PAINT = re.compile(
    r"(?<![\w-])(fill|stroke)\s{0,9}[=:]\s{0,9}[\"']?\s{0,9}(#?[a-z0-9]{3,24}|rgba?\([^()\"'<>]{5,60}\))"
)
_DATA = re.compile(r"\sd\s{0,9}=\s{0,9}[\"']([^\"']*)")
_COMMAND = re.compile(r"([a-z])([^a-z]*)", re.IGNORECASE)
_NUMBER = re.compile(r"-?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9})")

_Box = tuple[float, float, float, float]  # left, top, right, bottom
_Shape = tuple[_Box | None, int]  # None: all of the picture; and its shade of grey


def has_shapes(page: str) -> bool:
    """A quick test: whether there is SVG with as many rectangles or parts of a path as in a code."""
    if "svg" not in page and "SVG" not in page:
        return False
    if any(page.count(name) >= _MIN_SHAPES for name in _NAMES):
        return True
    return next(islice(_PATH_RUN.finditer(page), _MIN_SHAPES - 1, None), None) is not None


def vectors(page: str, budget: Budget) -> Iterator[list[bytes]]:
    """In shades of grey: a byte for each pixel. The references in the page are replaced already."""
    for drawing in _SVG.split(page)[1:]:
        shapes = list(_shapes(drawing, budget))
        if len(shapes) >= _MIN_SHAPES and (rows := _painted(shapes)):
            yield rows


def _shapes(drawing: str, budget: Budget) -> Iterator[_Shape]:
    around = 0  # the shade of the group
    width = height = 1.0  # of what `<use>` repeats
    for match in _TAG.finditer(drawing):
        budget.take_work(_TAG_WORK)
        name, attributes = match[2].lower(), match[3]
        about = attributes.lower() if name != "path" else _DATA.sub(" ", attributes, count=1).lower()
        paint = {key: grey_of(colour) for key, colour in _PAINT.findall(about[:1000])}
        grey = paint.get("fill", around)
        if name == "g":
            around = 0 if match[1] or grey is None else grey
            continue
        values = {key: (_float(number), sign) for key, number, sign in _VALUE.findall(about[:1000])}
        if name == "path":
            data = _DATA.search(attributes)
            thickness = values.get("stroke-width", (1.0, ""))[0]
            line = paint.get("stroke")
            for box in _boxes(data[1] if data else "", budget):
                if box[1] == box[3] and line is not None:
                    yield (box[0], box[1] - thickness / 2, box[2], box[3] + thickness / 2), line
                elif grey is not None:
                    yield box, grey
        elif grey is not None:
            if name == "rect":
                width, height = (values.get(side, (0.0, ""))[0] for side in ("width", "height"))
            left, top = values.get("x", (0.0, ""))[0], values.get("y", (0.0, ""))[0]
            is_all = values.get("width", (0.0, ""))[1] == "%"
            yield None if is_all else (left, top, left + width, top + height), grey


def _boxes(path: str, budget: Budget) -> Iterator[_Box]:
    """What surrounds each part of a path; none if it has curves."""
    x = y = 0.0
    box: _Box | None = None
    start = x, y
    for match in _COMMAND.finditer(path):
        command, numbers = match[1], [float(number) for number in _NUMBER.findall(match[2])]
        budget.take_work(_COMMAND_WORK + _NUMBER_WORK * len(numbers))
        kind, is_relative = command.lower(), command.islower()
        if kind in "mz":
            if box:
                yield box
            box = None
            if kind == "z":
                x, y = start
        if kind in "ml":
            steps: Iterable[tuple[float | None, float | None]] = zip(numbers[::2], numbers[1::2], strict=False)
        elif kind == "h":
            steps = ((number, None) for number in numbers)
        elif kind == "v":
            steps = ((None, number) for number in numbers)
        elif kind == "z":
            continue
        else:
            return
        for number, (across, down) in enumerate(steps):
            x = x if across is None else across + x * is_relative
            y = y if down is None else down + y * is_relative
            if kind == "m" and number == 0:
                start, box = (x, y), (x, y, x, y)
            elif box is None:
                box = (*start, x, y)
            box = (min(box[0], x), min(box[1], y), max(box[2], x), max(box[3], y))
    if box:
        yield box


def _painted(shapes: list[_Shape]) -> list[bytes]:
    """With four pixels for the smallest shape. Empty if it is not like a code."""
    from PIL import Image, ImageDraw

    boxes = [box for box, _ in shapes if box and box[2] > box[0] and box[3] > box[1]]
    if not boxes:
        return []
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    across, down = max(box[2] for box in boxes) - left, max(box[3] for box in boxes) - top
    unit = max(min(min(box[2] - box[0], box[3] - box[1]) for box in boxes), max(across, down) / MAX_MODULES)
    if min(across, down) < (MIN_MODULES - 1) * unit:
        return []
    scale = _MODULE / unit
    size = round(across * scale), round(down * scale)
    picture = Image.new("L", size, 255)
    paint = ImageDraw.Draw(picture)
    area = _MAX_AREA * size[0] * size[1]
    for box, grey in shapes:
        low, high, right, bottom = (
            (0, 0, *size)
            if box is None
            else tuple(round((value - origin) * scale) for value, origin in zip(box, (left, top) * 2, strict=True))
        )
        area -= (right - low) * (bottom - high)
        if area < 0:
            break
        if right > low and bottom > high:
            paint.rectangle((low, high, right - 1, bottom - 1), fill=grey)
    pixels = picture.tobytes()
    return [pixels[at : at + size[0]] for at in range(0, len(pixels), size[0])]


def _float(number: str) -> float:
    found = _NUMBER.match(number)
    return float(found[0]) if found else 0.0
