"""A scanner as a separate process that can be killed; each mail states its decision and delay.

    deciding_scanner.py PORT SEEN

The mail has a field `X-Fault: <decision> <seconds> <id>`. Each decision is written to SEEN, one line per submission,
before it is sent, so that a mail dropped without a scan is detected.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import closing, suppress

# Imports nothing of the bridge, so that it restarts quickly.
WISH = re.compile(rb"^X-Fault: (\w+) ([\d.]+) (\S+)\r$", re.MULTILINE)
LENGTH = re.compile(rb"^content-length: *(\d+)\r$", re.MULTILINE | re.IGNORECASE)
TIMES = {"created": "2026-01-01T00:00:00Z", "completed": "2026-01-01T00:00:01Z"}
KNOWN = {"ggrid": "11111111-2222-4333-8444-555555555555", "verdict": "test", "tags": [], **TIMES}


def answer(**words: object) -> bytes:
    body = json.dumps(words).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def main(port: int, seen: str) -> None:
    fd = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if b"/admin/status" in head.split(b"\r\n", 1)[0]:
                    writer.write(answer(messageQueueStatus="GREEN"))
                    continue
                wish = WISH.search(body)
                assert wish is not None
                decision, seconds, mail_id = (word.decode() for word in wish.groups())
                await asyncio.sleep(float(seconds))
                os.write(fd, f"{mail_id} {decision}\n".encode())
                writer.write(answer(**KNOWN, decision=decision))

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=2**22)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
