"""Parts of a page that a program writes, between `<!-- NAME -->` and `<!-- end of NAME -->`.

The rest of the page is written by hand, and is kept.
"""

from __future__ import annotations

import re


def with_part(page: str, name: str, part: str) -> str:
    """The page with this part instead of the old one. Raises ValueError if the page has no place for it."""
    block = f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->"
    pattern = re.compile(rf"<!-- {name} -->(?:.*<!-- end of {name} -->)?", re.DOTALL)
    text, count = pattern.subn(lambda _: block, page)
    if count != 1:
        raise ValueError(f"<!-- {name} --> occurs {count} times in the page, instead of once")
    return text
