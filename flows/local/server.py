"""A Prefect server and worker on this machine: started, used and stopped as one thing.

- `up` keeps a server that it started before, else uses the API that the user configured, else
  starts one on loopback; it starts a worker if the pool has none, and registers the deployments.
  `down` stops exactly what `up` started: first runs are cancelled, then worker and server end.
- `prefect.toml` points plain `prefect` commands at it; a file of the user's own is never touched.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tangobench import cli
from tangobench.errors import ResourceError, UsageError, without_secrets
from tangobench.flows import _api
from tangobench.flows.local import place as _place
from tangobench.flows.local import process as _process
from tangobench.flows.local.place import PORT, SERVE, WORKER, Place, State, environment
from tangobench.flows.local.process import Process, alive

POOL = "tangobench"
START_SECONDS = 180.0  # a fresh database takes 12 to 21 s on two idle cores, much more when busy


def known(place: Place) -> State | None:
    """The API to use: the one that the user configured, else the server of `make deploy`."""
    state = place.load()
    url = place.users_url(state)
    if url is None:
        return state if state and alive(state.server) else None
    if not _api.answers(url):
        why = f"no Prefect API answers at {url}, which is configured"
        fix = "start it, or correct or unset PREFECT_API_URL: then one in this folder is used"
        raise UsageError(why, kind="prefect-unreachable", fix=fix)
    return State(url=url, worker=state.worker if state and state.url == url else None)


def listener(wanted: int) -> socket.socket:
    """A listening socket on loopback, at the wanted port or a free one."""
    for port in (wanted, 0):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
            bound.listen(128)
            return bound
        except (OSError, OverflowError):
            bound.close()
    raise ResourceError("no free port on 127.0.0.1", kind="no-port", fix="close a program")


def start_server(place: Place, wanted: int, name: str, *words: str) -> State:
    """Start a server at the wanted port or a free one; its log is NAME.log."""
    with listener(wanted) as bound:
        state = State(url=f"http://127.0.0.1:{bound.getsockname()[1]}/api")
        (place.folder / "home").mkdir(parents=True, exist_ok=True)
        server = _process.start(
            [sys.executable, *SERVE, str(bound.fileno()), *words],
            env=environment(place, state, starting=True),
            cwd=place.root,
            log=place.folder / f"{name}.log",
            keep=[bound.fileno()],
        )
    return replace(state, server=server)


def wait_for(
    what: str,
    ready: Callable[[], bool],
    process: Process | None,
    log: Path,
    seconds: float = START_SECONDS,
) -> None:
    """Wait until a started process is ready; an error shows the end of its log."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not alive(process) or time.monotonic() > deadline:
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            first = f"the {what} did not start in {seconds:.0f} s; the end of {log}:"
            raise ResourceError(
                "\n".join([first, *tail]),
                kind=f"prefect-{what}",
                fix=f"read {log}, then run `make undeploy` and `make deploy`",
            )
        time.sleep(0.1)


def ready(state: State) -> bool:
    return _api.answers(state.url, path="/ready")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _find_server(place: Place, port: int) -> State:
    """The server to use: the one started before, the user's own, or a new one."""
    before = place.load()
    if before and alive(before.server):
        if _api.answers(before.url):
            return before
        _process.stop(before.server, seconds=10.0)
    url = place.users_url(before)
    if url and not _is_free(url):
        return known(place) or _start_server(place, port)
    # At the address of the last one, so that shells and open pages find it again.
    last = url or (before.url if before and before.server else None)
    return _start_server(place, (last and urlsplit(last).port) or port)


def _is_free(url: str) -> bool:
    """Whether it is an address of this machine at which nobody listens."""
    if not _api.is_loopback(url):
        return False
    with socket.socket() as probe:
        probe.settimeout(3.0)
        return probe.connect_ex(("127.0.0.1", urlsplit(url).port or 80)) != 0


def _start_server(place: Place, wanted: int) -> State:
    _say("starting the Prefect server: about 20 s, longer on a busy machine …")
    state = start_server(place, wanted, "server")
    place.save(state)
    wait_for("server", partial(ready, state), state.server, place.folder / "server.log")
    return state


def _start_worker(place: Place, state: State) -> State:
    if alive(state.worker):
        return state
    from tangobench.flows.local import client  # seconds: Prefect

    if state.server is None and client.worker_names(POOL):
        return state
    name, log = f"tangobench-{secrets.token_hex(4)}", place.folder / "worker.log"
    words = ("--pool", POOL, "--type", "process", "--name", name, "--install-policy", "never")
    _say("starting the worker: about 10 s …")
    command = [sys.executable, *WORKER, *words]
    worker = _process.start(command, env=environment(place, state), cwd=place.root, log=log)
    state = replace(state, worker=worker)
    place.save(state)
    wait_for("worker", lambda: name in client.worker_names(POOL), worker, log)
    if state.server is not None:
        # A new worker on our own server: a run that still looks alive lost its process before.
        client.end_runs(POOL, None, "its worker is gone")
    return state


def _prefect(place: Place, state: State, *words: str, starting: bool = False) -> str:
    """Run a prefect command; what it said if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *words],
        env=environment(place, state, starting=starting),
        cwd=place.root,
        capture_output=True,
        text=True,
        umask=0o077,
        check=False,
    )
    return f"\n{done.stdout[-2000:]}{done.stderr[-2000:]}" if done.returncode else ""


def up(place: Place, port: int = PORT) -> State:
    if not (place.root / "prefect.yaml").exists():
        raise UsageError(
            f"{place.root} has no prefect.yaml", kind="not-a-project", fix="run it in the clone"
        )
    with place.locked():
        fresh = not (place.folder / "state.json").exists()
        try:
            state = _find_server(place, port)
            os.environ.update(environment(place, state))
            state = _start_worker(place, state)
            place.save(state)
            _say("registering the deployments of prefect.yaml: about 5 s …")
            if said := _prefect(place, state, "--no-prompt", "deploy", "--all"):
                why = f"`prefect deploy --all` failed:{said}"
                raise UsageError(why, kind="prefect-deploy", fix="correct prefect.yaml")
        except BaseException:
            if fresh:
                _stop(place)
            raise
        if state.server is not None and not _place.write_toml(place, state):
            _say(
                f"{place.toml} is your own and was left as it is: in a shell that should use this "
                'server, run eval "$(make -s prefect-env)"'
            )
    return state


def down(place: Place) -> State | None:
    """Stop what `up` started, and nothing else."""
    with place.locked():
        return _stop(place)


def _stop(place: Place) -> State | None:
    state = place.load()
    if state is None:
        return None
    os.environ.update(environment(place, state))
    started = {"worker": state.worker, "server": state.server}
    for name, process in started.items():
        if process and not alive(process):
            _say(f"no longer running: the {name}")
    _say(f"stopping what runs of {place.folder} …")
    children = _process.descendants(state.worker)
    ours = alive(state.server) or (state.server is None and children)
    if ours and _api.answers(state.url):
        from tangobench.flows.local import client

        # On a server that others use, only the runs of our own worker are ours to end.
        pids = None if state.server else [child.pid for child in children]
        client.end_runs(POOL, pids, "`make undeploy`", seconds=15.0 if children else 0.0)
    for process in filter(alive, started.values()):
        _process.stop(process, seconds=10.0)
    (place.folder / "state.json").unlink(missing_ok=True)
    _place.remove_toml(place)
    return state


def shell(place: Place) -> str:
    """Lines for `eval` that set a shell up for plain `prefect` commands anywhere."""
    state = place.load()
    own = bool(state and alive(state.server))  # else anybody may have taken its port
    url = state.url if state and (own or not state.server) else place.users_url(None)
    if url is None:
        raise UsageError("no Prefect server is set up", kind="no-server", fix="run `make deploy`")
    values = {
        **(_place.client_settings(place, url) if own else {"PREFECT_API_URL": url}),
        "PREFECT_PLUGINS_ENABLED": "true",
        "PREFECT_PLUGINS_ALLOW": "tangobench",
        "DO_NOT_TRACK": "1",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    programs = shlex.quote(str(Path(sys.executable).parent))
    return "\n".join([*lines, f'export PATH={programs}:"$PATH"'])


def initialise(place: Place) -> None:
    """Create the database ahead of its first use, so that the first run need not wait for it."""
    place.prepare()
    state = State(url=f"http://127.0.0.1:{PORT}/api")
    if said := _prefect(place, state, "server", "database", "upgrade", "--yes", starting=True):
        why = f"the Prefect database was not created:{said}"
        raise ResourceError(why, kind="prefect-database", fix="the first `make data-*` tries again")


def _say_up(place: Place, state: State) -> None:
    url = without_secrets(state.url)
    ui = url.removesuffix("/api")
    print(f"Prefect API {url} ({'started here' if state.server else 'already there'})")
    print(f"worker of pool {POOL} ({'started here' if state.worker else 'already there'})")
    if state.server:
        print(f"log in to {ui} with the string in {place.auth} (readable by you only)")
    print(f"open {ui} · prefect deployment run build-lean --watch · make undeploy")


def _run(args: argparse.Namespace) -> int:
    place = Place(root=Path.cwd().resolve())
    if args.action == "up":
        _say_up(place, up(place, args.port))
    elif args.action == "down":
        print("stopped" if down(place) else "nothing was running")
    elif args.action == "init":
        initialise(place)
    else:
        print(shell(place))
    return 0


def _parser(_: Sequence[str]) -> cli.Parser:
    parser = cli.Parser(prog="python -m tangobench.flows.local.server")
    parser.add_argument("action", choices=("up", "down", "env", "init"))
    parser.add_argument("--port", type=int, default=PORT, help="wanted port of a new server")
    parser.set_defaults(run=_run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind `make deploy`, `make undeploy` and `make prefect-env`."""
    return cli.main(argv, _parser)


if __name__ == "__main__":
    sys.exit(main())
