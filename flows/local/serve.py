"""The Prefect API server as a process of its own, on a socket that its starter has bound.

- Nobody else can take the port in between and be given the secret.
- With FILE it has no UI and ends by itself when nobody holds a shared lock on FILE any more: the
  kernel releases the lock of a killed command, too.

Usage: `python -m tangobench.flows.local.serve DESCRIPTOR [FILE]`.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import uvicorn

_LOOK_SECONDS: Final = 0.3


def _end_with_users(path: Path, server: uvicorn.Server) -> None:
    """Stop the server when the last user is gone; the lock is kept until this process has ended."""
    file = path.open("ab")
    while not server.should_exit:
        time.sleep(_LOOK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.should_exit = True


def main() -> None:
    """Serve until SIGTERM, or until nobody uses it."""
    import uvicorn
    from prefect.server.api.server import create_app

    descriptor, *users = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    app = create_app(final=True, ephemeral=bool(users))
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="on", log_level="warning", timeout_graceful_shutdown=5)
    )
    for path in users:
        threading.Thread(target=_end_with_users, args=(Path(path), server), daemon=True).start()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
