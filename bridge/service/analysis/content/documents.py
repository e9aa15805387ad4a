"""Documents, pictures and pages: what they link to, what they run, and the files in them.

To the inspection they are containers, whose members may also carry tags and links. Each kind has its own reader; this
module knows only which of them reads what. Nothing is imported that a mail does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bridge.service.analysis.content import office_files, pdf_files, pictures, recognition, script_files
from bridge.service.analysis.content.optional_formats import OFFICE, PDF, QR_CODES, SCRIPTS
from bridge.service.analysis.content.unpacking import Budget, Member

MAX_NESTED = 6  # documents within documents, besides archives


def kinds_of(content: bytes, names: Collection[str], formats: Collection[str]) -> Iterator[str]:
    """All formats that it may be read as: programs go by the name, and a page may contain the mark of a PDF file."""
    if QR_CODES in formats and pictures.is_picture(content):
        yield QR_CODES
    if PDF in formats and pdf_files.is_pdf(content, names):
        yield PDF
    if OFFICE in formats and office_files.is_office(content, names):
        yield OFFICE
    if SCRIPTS in formats and recognition.is_web_page(content, names) and script_files.may_build(content):
        yield SCRIPTS


def members(
    content: bytes, kind: str, names: Collection[str], budget: Budget, formats: Collection[str] = ()
) -> Iterator[Member]:
    """Raises TooMuch."""
    if kind == QR_CODES:
        return pictures.picture_members(content, budget)
    if kind == PDF:
        return pdf_files.pdf_members(content, budget, reads_pictures=QR_CODES in formats)
    if kind == OFFICE:
        return office_files.office_members(content, names, budget)
    return script_files.page_members(content, budget)
