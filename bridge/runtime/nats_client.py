"""A NATS client that speaks TLS or nothing, and that says at once if it cannot connect.

A NATS server says in its first line, which is not encrypted, whether it wants TLS. The library believes it, even for
a `tls://` URL: an attacker in between could remove that word, and would get the password and everything after it
(nats-py 2.16). This client goes on only over TLS if the URL says so.

Without `allow_reconnect`, the library still tries a server that refuses connections again and again. This client
tries each server once.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.errors import Error, NoServersError


class NatsClient(Client):
    async def _select_next_server(self) -> None:
        if self.options["allow_reconnect"]:
            await super()._select_next_server()
            return
        problem: Exception = NoServersError()
        for server in self._server_pool:
            try:
                await self._connect_to_server(server)
            except (OSError, Error) as exc:  # OSError includes TimeoutError and ssl.SSLError
                problem = exc
                continue
            self._current_server = server
            return
        raise problem

    def _connect_command(self) -> bytes:
        """The line with the credentials, which is the first that we send."""
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Error("the server does not require TLS, so it may be someone else; set tls in its configuration")
        return super()._connect_command()
