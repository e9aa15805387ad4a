"""Reads length-prefixed mails and answers each with a line of JSON: what GMime finds in it. For Debian's Python."""

import base64
import json
import struct
import sys

import gi

gi.require_version("GMime", "3.0")
from gi.repository import GMime  # noqa: E402


def main() -> None:
    GMime.init()
    while len(size := sys.stdin.buffer.read(4)) == 4:
        mail = sys.stdin.buffer.read(struct.unpack(">I", size)[0])
        print(json.dumps(read(mail)), flush=True)


def read(mail):
    found = []
    message = GMime.Parser.new_with_stream(GMime.StreamMem.new_with_buffer(mail)).construct_message(None)
    todo = [message]
    while todo:
        part = todo.pop()
        if isinstance(part, GMime.Message):
            todo.append(part.get_mime_part())
        elif isinstance(part, GMime.MessagePart):
            todo.append(part.get_message())
        elif isinstance(part, GMime.Multipart):
            todo += [part.get_part(index) for index in range(part.get_count())]
        elif isinstance(part, GMime.Part) and part.get_content() is not None:
            stream = GMime.StreamMem.new()
            part.get_content().write_to_stream(stream)
            kind = part.get_content_type()
            kind = kind.get_mime_type() if kind is not None else ""
            content = base64.b64encode(bytes(stream.get_byte_array() or b"")).decode()
            found.append((content, part.get_filename() or "", kind))
    return found


main()
