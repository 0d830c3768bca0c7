"""A door in front of a server on loopback through which its answers come slowly."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

PIECE = 4096


class Throttle:
    """Every connection to `url` is one to the server, whose bytes pass at the rate given."""

    def __init__(self, server: str, *, bytes_per_second: int) -> None:
        self._server = urlsplit(server)
        self._pause = PIECE / bytes_per_second
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._welcome, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                place = (self._server.hostname or "", self._server.port or 0)
                server = socket.create_connection(place)
                for ends in ((client, server, 0.0), (server, client, self._pause)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, pause: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
            time.sleep(pause)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
