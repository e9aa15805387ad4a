"""An SMTP client that sends exactly what it is told to, right or wrong."""

from __future__ import annotations

import socket


class SmtpClient:
    """Sends exactly the given bytes and reads whole replies. A context manager."""

    def __init__(self, port: int, source: str = "127.0.0.1", timeout_s: float = 60.0, host: str = "127.0.0.1") -> None:
        """`source` is "" for a host that is not on loopback."""
        self.sock = socket.create_connection((host, port), timeout_s, (source, 0))
        self._read = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def line(self) -> bytes:
        """The next line without its CRLF; b"" if the bridge has closed the connection."""
        while b"\r\n" not in self._read:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return b""
            if not data:
                return b""
            self._read += data
        line, _, self._read = self._read.partition(b"\r\n")
        return line

    def reply(self) -> bytes:
        """The next reply; several lines are joined by LF."""
        lines = [self.line()]
        while lines[-1][3:4] == b"-":
            lines.append(self.line())
        return b"\n".join(lines)

    def say(self, *commands: bytes) -> list[bytes]:
        """Send all commands in one write, each with CRLF, and return their replies."""
        self.send(b"".join(command + b"\r\n" for command in commands))
        return [self.reply() for _ in commands]

    def open(self, hello: bytes = b"EHLO client.example") -> bytes:
        """Read the greeting, send `hello`, and return the reply to it."""
        self.reply()
        return self.say(hello)[0]

    def begin(self, sender: bytes = b"<a@client.example>", recipient: bytes = b"<b@example.org>") -> bytes:
        """Send MAIL, RCPT and DATA, and return the reply to DATA."""
        return self.say(b"MAIL FROM:" + sender, b"RCPT TO:" + recipient, b"DATA")[2]

    def mail(self, content: bytes = b"Subject: x\r\n\r\nx\r\n") -> bytes:
        """Send a whole mail and return the reply to the final dot. The content is sent unchanged."""
        self.begin()
        return self.say(content + b".")[0]

    def is_cut(self) -> bool:
        """Wait for the bridge to close or reset the connection; False if it does not. Discards what it still sends."""
        return is_cut(self.sock)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> SmtpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_cut(sock: socket.socket) -> bool:
    """Whether the other end closes or resets the connection within the socket's timeout. Discards what it sends."""
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
