"""The Prefect API server as a process of its own, on a socket that its starter has bound.

- Nobody else can take the port in between and be given the secret.
- With `--users FILE` it has no UI and ends by itself when nobody holds a shared lock on FILE any
  more: the kernel releases the lock of a killed command, too.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import socket
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
    parser = argparse.ArgumentParser(prog="python -m tangobench.flows.local.serve")
    parser.add_argument("--socket", type=int, required=True, help="descriptor of a bound socket")
    parser.add_argument("--users", type=Path, help="end when nobody holds a lock on this file")
    args = parser.parse_args()
    import uvicorn
    from prefect.server.api.server import create_app

    listener = socket.socket(fileno=args.socket)
    app = create_app(final=True, ephemeral=args.users is not None)
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="on", log_level="warning", timeout_graceful_shutdown=5)
    )
    if args.users:
        watch = threading.Thread(target=_end_with_users, args=(args.users, server), daemon=True)
        watch.start()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
