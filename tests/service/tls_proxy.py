"""A TLS proxy in front of a server that has no TLS, as stunnel is."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme


class TlsProxy:
    def __init__(self, certificate: trustme.LeafCert, behind: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._context)
        self._behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.passed_on = 0  # bytes that clients have sent
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One direction for each thread; the one that ends first ends both."""
        with client, suppress(OSError):
            client.settimeout(60)
            with (
                self._context.wrap_socket(client, server_side=True) as tls,
                socket.create_connection(("127.0.0.1", self._behind), 60) as server,
            ):
                back = threading.Thread(target=_copy, args=[server, tls], daemon=True)
                back.start()
                while piece := tls.recv(65536):
                    self.passed_on += len(piece)
                    server.sendall(piece)
                server.shutdown(socket.SHUT_RDWR)
                back.join(60)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _copy(server: socket.socket, tls: ssl.SSLSocket) -> None:
    with suppress(OSError):
        while piece := server.recv(65536):
            tls.sendall(piece)
        tls.shutdown(socket.SHUT_RDWR)


@contextmanager
def tls_proxy(directory: Path, behind: int, name: str = "127.0.0.1") -> Iterator[TlsProxy]:
    """Its authority is in `directory`, as `ca.pem`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    proxy = TlsProxy(authority.issue_cert(name), behind)
    try:
        yield proxy
    finally:
        proxy.close()
