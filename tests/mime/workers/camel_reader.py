"""Reads length-prefixed mails and answers each with a line of JSON: what Camel finds in it. For Debian's Python."""

import base64
import json
import struct
import sys

import gi

gi.require_version("Camel", "1.2")
from gi.repository import Camel, Gio  # noqa: E402


def main() -> None:
    while len(size := sys.stdin.buffer.read(4)) == 4:
        mail = sys.stdin.buffer.read(struct.unpack(">I", size)[0])
        try:
            found = read(mail)
        except Exception:
            found = []
        print(json.dumps(found), flush=True)


def read(mail):
    message = Camel.MimeMessage.new()
    message.construct_from_input_stream_sync(Gio.MemoryInputStream.new_from_data(mail, None), None)
    found, todo = [], [message]
    while todo:
        part = todo.pop()
        content = part.get_content()
        if isinstance(content, Camel.MimeMessage):
            todo.append(content)
        elif isinstance(content, Camel.Multipart):
            todo += [content.get_part(index) for index in range(content.get_number())]
        elif content is not None:
            stream = Gio.MemoryOutputStream.new_resizable()
            content.decode_to_output_stream_sync(stream, None)
            stream.close(None)
            kind = content.get_mime_type() or ""
            decoded = stream.steal_as_bytes().get_data() or b""
            found.append((base64.b64encode(decoded).decode(), part.get_filename() or "", kind))
    return found


main()
