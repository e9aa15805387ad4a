"""Python 3.11.2 takes more than it should for `(...)*+`: what the last alternative has read before it failed."""

from __future__ import annotations

import re

from bridge.console import preview
from bridge.mime import readings
from bridge.service.analysis.content import odf_files, pdf_files


def test_a_comment_that_does_not_end_is_not_skipped() -> None:
    found = re.match(readings._BETWEEN, b" (a) (b (c) d")
    assert found is not None and found.group() == b" (a) "


def test_a_module_ends_before_its_end_tag() -> None:
    found = odf_files._MODULE_TAG.search("<module>a<b>c</module>")
    assert found is not None and found[1] == "a<b>c"


def test_an_attribute_without_its_second_quote_is_not_one() -> None:
    texts = {b'a"b>c': b"a", b'a\'b>"c">': b"a", b'a"b>"c>d': b'a"b>"c'}
    assert {text: pdf_files._ATTRIBUTES.match(text).group() for text in texts} == texts  # type: ignore[union-attr]


def test_a_tag_with_an_open_quote_is_not_complete() -> None:
    for piece, is_certain in {'a b="c>': False, 'a b=">': False, 'a b="c" d=e>': True, "a b>": True}.items():
        assert preview._is_certain(piece) == is_certain
