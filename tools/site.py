"""Builds the site from all documents of the repository, at their repository paths: a mkdocs hook (`make site`).

The documents are written to be read in the repository, and link to each other, to the recipes in deploy/ and to
configuration files; mkdocs by itself only knows docs/. Knows nothing of the pages' content: mkdocs finds broken links
and pages without navigation itself (`--strict`).
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
SHOWN = [
    "*.md",
    "LICENSE",
    "docs/**/*",
    "deploy/**/*",
    "tests/interfaces/*.txt",
    "tests/*/README.md",
    "tests/*/*/README.md",
]
LOOK = ("console.css", "icon.svg")  # of the console
CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE | re.DOTALL)
# A line of text directly followed by a list or table.
NO_EMPTY_LINE = re.compile(r"^(?![-|#> ]|\d+\. )(.+\n)(?=- |1\. |\|)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs["toc"] = {"slugify": anchor, "permalink": True}


def anchor(heading: str, separator: str) -> str:
    """As on code forges: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Keeps the theme's files, and replaces those of docs/ by all documents at their repository paths."""
    pages = [file for file in files if file.src_dir != config.docs_dir]
    for path in sorted({path for pattern in SHOWN for path in ROOT.glob(pattern)}):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            pages.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name in LOOK:
        pages.append(File.generated(config, name, abs_src_path=str(ROOT / "bridge/console/static" / name)))
    return Files(pages)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Python-Markdown requires an empty line before a list or table; code forges do not."""
    parts = CODE.split(markdown)
    parts[::2] = [NO_EMPTY_LINE.sub(r"\1\n", COMMENT.sub("", text)) for text in parts[::2]]
    return "".join(parts)
