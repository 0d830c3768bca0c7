"""Where a command's flow runs are recorded: the user's API, the server of `make deploy`, or an
embedded server.

The embedded server records in `.state/prefect`; it starts with the first command that needs it and
ends with the last. `make deploy` uses the same database, so its UI shows those runs. If the server
does not come up, the command prints one loud line and builds unrecorded.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any, Final

from tangobench.errors import TangobenchError, without_secrets
from tangobench.flows import _api
from tangobench.flows.local import place as _place
from tangobench.flows.local.place import Place, State
from tangobench.flows.local.process import alive, stop, wait_gone
from tangobench.flows.local.server import known, ready, start_server, wait_for

START_SECONDS: Final = 120.0
_END_SECONDS: Final = 15.0
LOUD: Final = "RUN NOT RECORDED"
LOST: Final = threading.Event()
"""Set when a server of ours is gone before its command: at exit Prefect would try to reach it."""

Say = Callable[[str], Any]
IsLost = Callable[[], bool]


@contextlib.contextmanager
def recorded(place: Place, say: Say) -> Iterator[IsLost | None]:
    """Point this process at a Prefect API and say which one.

    Yields a function that tells whether the embedded server has stopped answering, or None if no
    API is available and the command must build unrecorded.
    """
    if state := known(place):
        if state.server:
            os.environ.update(_place.client_settings(place, state.url))
        url = without_secrets(state.url)
        say(f"flow run recorded on {url}{', the server of `make deploy`' if state.server else ''}")
        yield lambda: False
        return
    with contextlib.ExitStack() as stack:
        yield _embedded(place, say, stack)


def _embedded(place: Place, say: Say, stack: contextlib.ExitStack) -> IsLost | None:
    say(f"flow run recorded in {place.folder} (`make deploy` shows it)")
    try:
        place.prepare()
        # Whoever holds this lock is counted among the users: the server ends when there are none.
        users = stack.enter_context((place.folder / "users").open("ab"))
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a server that is about to end
        state, began = _find_or_start(place)
        stack.callback(_leave, users, state)
        # Five retries, the default, are a minute for each call once this server is gone.
        settings = _place.client_settings(place, state.url)
        os.environ.update({**settings, "PREFECT_CLIENT_MAX_RETRIES": "1"})
        # Prefect takes seconds to import: meanwhile the server does the same in its own process.
        importlib.import_module("tangobench.flows.deployments")
        log = place.folder / "embedded.log"
        try:
            wait_for("server", partial(ready, state), state.server, log, START_SECONDS)
        except TangobenchError:
            stop(state.server, seconds=5.0)
            raise
        if began:
            from tangobench.flows.local import client

            client.end_lost_runs(began)
    except (OSError, TangobenchError) as error:
        why = str(error).splitlines()[0].rstrip(":")
    except Exception as error:  # Prefect's own trouble
        why = without_secrets(f"{type(error).__name__}: {error}")
    else:
        return lambda: not _api.answers(state.url)
    say(f"{LOUD}: {why}; the build continues without Prefect")
    return None


def _find_or_start(place: Place) -> tuple[State, float]:
    """The server that another command started, or a new one and the time of its start."""
    with place.locked():
        found = place.load("embedded.json")
        if found and alive(found.server):
            return found, 0.0
        began = time.time()
        state = start_server(place, 0, "embedded", str(place.folder / "users"))
        place.save(state, "embedded.json")
        return state, began


def _leave(users: IO[bytes], state: State) -> None:
    """Send what is still to be sent; wait for the server if nobody else uses it."""
    if not alive(state.server):
        LOST.set()
        return
    if "prefect" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        with contextlib.suppress(Exception):
            APILogWorker.drain_all(timeout=_END_SECONDS)
            EventsWorker.drain_all(timeout=_END_SECONDS)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # the server ends with another command
    fcntl.flock(users, fcntl.LOCK_UN)
    wait_gone([state.server] if state.server else [], _END_SECONDS)
