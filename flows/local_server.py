"""A Prefect server and worker on this machine: started, used and stopped as one thing.

- Loopback only, SQLite under `.state/prefect`, analytics off; nothing outside is asked.
- `up` uses the API that Prefect is configured for when it answers, and a worker that is there;
  it starts only what is missing, waits until both answer and registers the deployments.
- `down` stops exactly what `up` started: runs are cancelled first, then worker, then server.
- `prefect.toml`, written by `up` and removed by `down`, points plain `prefect` commands at it.

Usage: `python -m tangobench.flows.local_server up`, then `prefect deployment run build-lean`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tangobench.errors import ResourceError, TangobenchError, UsageError
from tangobench.flows import _api, _process
from tangobench.flows._place import PORT, Place, State, environment, remove_toml, write_toml
from tangobench.flows._process import Process

POOL = "tangobench"
START_SECONDS = 180.0  # a fresh database takes 12 to 21 s on two idle cores, much more when busy


def _prefect(*words: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *words]


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ResourceError("no free port on 127.0.0.1", kind="no-port", fix="close a program")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _wait(what: str, ready: Callable[[], bool], process: Process, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if not _process.alive(process) or time.monotonic() > deadline:
            raise ResourceError(
                f"the {what} did not start; the end of {log}:\n{_tail(log)}",
                kind=f"prefect-{what}",
                fix=f"read {log}, then run `make undeploy` and `make deploy`",
            )
        time.sleep(0.2)


def _start_server(place: Place, wanted: int) -> State:
    state = State(url=f"http://127.0.0.1:{_free_port(wanted)}/api")
    env = environment(place, state, starting=True)
    (place.folder / "home").mkdir(parents=True, exist_ok=True)
    log = place.folder / "server.log"
    server = _process.start(_prefect("server", "start"), env=env, cwd=place.root, log=log)
    state = replace(state, server=server)
    place.save(state)
    _wait("server", lambda: _api.answers(state.url, path="/ready"), server, log)
    return state


def _find_server(place: Place, port: int) -> State:
    """The server to use: the one started before, the configured one, or a new one."""
    before = place.load()
    if before and before.server and _process.alive(before.server) and _api.answers(before.url):
        return before
    url = _api.configured_url(place.root) or (before.url if before else None)
    if url and _api.answers(url):
        return State(url=url, worker=before.worker if before and before.url == url else None)
    if url and not _api.is_loopback(url):
        raise UsageError(
            f"the configured Prefect API {url} does not answer",
            kind="prefect-unreachable",
            fix="check PREFECT_API_URL, or unset it to get a server on this machine",
        )
    return _start_server(place, (urlsplit(url).port or PORT) if url else port)


def _start_worker(place: Place, state: State) -> State:
    from tangobench.flows import _client

    if state.worker and _process.alive(state.worker):
        return state
    if state.server is None and _client.worker_names(POOL):
        return state
    name, log = f"tangobench-{secrets.token_hex(4)}", place.folder / "worker.log"
    words = ("worker", "start", "--pool", POOL, "--type", "process", "--name", name)
    worker = _process.start(
        _prefect(*words, "--install-policy", "never"),
        env=environment(place, state),
        cwd=place.root,
        log=log,
    )
    state = replace(state, worker=worker)
    place.save(state)
    _wait("worker", lambda: name in _client.worker_names(POOL), worker, log)
    if state.server is not None:
        # A new worker on our own server: a run that still looks alive lost its process before.
        _client.end_runs(POOL, None, "its worker is gone")
    return state


def _register(place: Place, state: State) -> None:
    done = subprocess.run(
        _prefect("--no-prompt", "deploy", "--all"),
        env=environment(place, state),
        cwd=place.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UsageError(
            f"`prefect deploy --all` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}",
            kind="prefect-deploy",
            fix="correct prefect.yaml",
        )


def up(place: Place, port: int = PORT) -> State:
    """Make server, worker and deployments available."""
    if not (place.root / "prefect.yaml").exists():
        raise UsageError(
            f"{place.root} has no prefect.yaml", kind="not-a-project", fix="run it in the clone"
        )
    with place.locked():
        fresh = place.load() is None
        try:
            state = _find_server(place, port)
            os.environ.update(environment(place, state))
            state = _start_worker(place, state)
            place.save(state)
            _register(place, state)
        except BaseException:
            if fresh:
                _stop(place)
            raise
        if state.server is not None:
            write_toml(place, state)
    return state


def _stop(place: Place) -> State | None:
    state = place.load()
    if state is None:
        return None
    os.environ.update(environment(place, state))
    children = _process.descendants(state.worker) if state.worker else []
    if _api.answers(state.url):
        from tangobench.flows import _client

        # On a server that others use, only the runs of our own worker are ours to end.
        pids = None if state.server else [child.pid for child in children]
        _client.end_runs(POOL, pids, "`make undeploy`", seconds=15.0 if children else 0.0)
    for process in (state.worker, state.server):
        if process and _process.alive(process):
            _process.stop(process, seconds=10.0)
    (place.folder / "state.json").unlink(missing_ok=True)
    remove_toml(place)
    return state


def down(place: Place) -> State | None:
    """Stop what `up` started, and nothing else."""
    with place.locked():
        return _stop(place)


def shell(place: Place) -> str:
    """Lines for `eval` that set a shell up for plain `prefect` commands anywhere."""
    state = place.load()
    url = state.url if state else _api.configured_url(place.root)
    if url is None:
        raise UsageError("no Prefect server is set up", kind="no-server", fix="run `make deploy`")
    values = {
        "PREFECT_API_URL": url,
        "PREFECT_PLUGINS_ENABLED": "true",
        "PREFECT_PLUGINS_ALLOW": "tangobench",
        "DO_NOT_TRACK": "1",
    }
    if state and state.server:
        values["PREFECT_HOME"] = str(place.folder / "home")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(
        [*lines, f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"']
    )


def _say_up(state: State) -> None:
    ui = state.url.removesuffix("/api")
    print(f"Prefect API {state.url} ({'started here' if state.server else 'already there'})")
    print(f"worker of pool {POOL} ({'started here' if state.worker else 'already there'})")
    print(f"open {ui} · prefect deployment run build-lean --watch · make undeploy")


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind `make deploy`, `make undeploy` and `make prefect-env`."""
    parser = argparse.ArgumentParser(prog="python -m tangobench.flows.local_server")
    parser.add_argument("action", choices=("up", "down", "env"))
    parser.add_argument("--port", type=int, default=PORT, help="wanted port of a new server")
    args = parser.parse_args(argv)
    place = Place(root=Path.cwd().resolve())
    try:
        if args.action == "up":
            _say_up(up(place, args.port))
        elif args.action == "down":
            print("stopped" if down(place) else "nothing was running")
        else:
            print(shell(place))
    except TangobenchError as error:
        print(f"error: {error.message}\nfix: {error.fix}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
