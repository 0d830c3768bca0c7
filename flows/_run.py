"""Inside a flow run: its tasks, what a person sees of it in the Prefect UI, and how it ends.

- A stage is one task run. Nothing is cached or persisted by Prefect, because the unit store resumes
  by content; a unit tries again by itself after a passing I/O fault.
- Logs, progress bars and artifacts decide nothing: an API that takes none does not fail a build.
- An expected error ends the run as failed with its own message and the next step.
"""

from __future__ import annotations

import collections
import io
import logging
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from prefect import get_client, get_run_logger, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from tangobench.errors import TangobenchError, without_secrets
from tangobench.pipeline.core.build import Runner
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import Reporter, units
from tangobench.pipeline.core.store import Place

Logger = logging.Logger | logging.LoggerAdapter[Any]
_GRACE_SECONDS: Final = 20.0  # for Prefect to report; after that nobody is listening


@task(name="stage", task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def _stage(name: str, values: Iterator[Any], box: collections.deque[Any]) -> Iterator[bool]:
    """Hand on a stage's values through `box`: Prefect would remember every value it sees."""
    try:
        for value in values:
            box.append(value)
            yield True
    except Exception as error:
        raise _cleaned(error) from None


class Staged:
    """Runs units as another runner does, with one Prefect task run around each stage.

    A task run costs about 40 ms of CPU and a unit may take a millisecond; so units are not tasks.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], labels: Sequence[str]
    ) -> Iterator[Any]:
        box: collections.deque[Any] = collections.deque()
        name = labels[0].partition(":")[0] if labels else "nothing to do"
        values = self._runner.map(function, items, labels)
        for _ in _stage(name, values, box):
            yield box.popleft()

    def close(self) -> None:
        self._runner.close()


def artifact_key(*words: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _plain(line: str) -> str:
    """A log line that `--watch` can print: it reads `[/…]` as markup and would stop there."""
    return line.replace("[/", "[ /")


class RunReporter(Reporter):
    """Progress as logs and progress artifacts of the current flow run, told to `also` as well."""

    _every = 5.0  # seconds; each is one call of the API and one log line

    def __init__(
        self, logger: Logger, dataset: str, profile: str, also: Reporter | None = None
    ) -> None:
        super().__init__(stream=io.StringIO())  # no terminal: plain lines, which go to the log
        self._logger = logger
        self._dataset, self._profile = dataset, profile
        self._also = also or Reporter(quiet=True)
        self._artifact: UUID | None = None

    def say(self, line: str) -> None:
        super().say(line)
        self._also.say(line)

    def start(self, stage: str, count: int, *weights: Any, **noun: Any) -> None:
        super().start(stage, count, *weights, **noun)
        self._also.start(stage, count, *weights, **noun)
        key = artifact_key(self._dataset, self._profile, stage.removeprefix(f"{self._dataset}-"))
        what = units(count, **noun)
        make = partial(create_progress_artifact, 0.0, key=key, description=f"{stage}, {what}")
        self._artifact = attempt(make, self._logger)
        super().say(f"{stage}: {what}")

    def advance(self, weight: float, **options: Any) -> None:
        super().advance(weight, **options)
        self._also.advance(weight, **options)

    def finish(self) -> None:
        self._update(100.0)
        super().finish()
        self._also.finish()

    def _draw(self, line: str) -> None:
        self._update(100.0 * self._share())
        super().say(line)

    def _write(self, text: str) -> None:
        self._logger.info(_plain(text.rstrip("\n")))

    def _update(self, percent: float) -> None:
        artifact = self._artifact
        if artifact is not None:
            attempt(lambda: update_progress_artifact(artifact, progress=percent), self._logger)


def attempt(call: Callable[[], Any], logger: Logger) -> Any:
    """The result of `call`, or None and a warning: a missing artifact does not fail a build."""
    try:
        return call()
    except Exception as error:
        logger.warning("artifact not stored: %s", error)
        return None


def _cleaned(error: Exception) -> Exception:
    """The error without secrets: Prefect stores its text."""
    error.args = tuple(without_secrets(a) if isinstance(a, str) else a for a in error.args)
    return error


def finish(work: Callable[[Any], tuple[str, dict[str, Any]]], tags: list[str]) -> State[Any]:
    """Run the body of a flow and turn its end into a state."""
    if "PREFECT__FLOW_RUN_ID" in os.environ:  # a Prefect worker started this process
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    logger = get_run_logger()
    _quiet_engine(logger)
    attempt(lambda: _add_tags(tags), logger)
    try:
        message, data = work(logger)
    except TangobenchError as error:
        message = _plain(f"{error.message} (try: {error.fix})" if error.fix else error.message)
        logger.error(message)
        return Failed(message=message, data=error)
    except Exception as error:
        logger.error(_plain(without_secrets(traceback.format_exc())))
        message = _plain(f"{type(error).__name__}: {_cleaned(error)}")
        return Failed(message=message, data=error)
    logger.info(message)
    return Completed(message=message, data=data)


def _end_with(parent: int) -> None:
    """End a run whose worker is gone, so that it neither runs on unseen nor stays RUNNING.

    SIGTERM is what a cancelled run gets: Prefect reports the run as crashed, the build can resume.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _no_traceback(record: logging.LogRecord) -> bool:
    """A log filter that drops the engine's tracebacks: `finish` logs the error without secrets."""
    return not record.exc_info


def _quiet_engine(logger: Logger) -> None:
    """Leave the log to the build: no engine line per task, no traceback of the engine's."""
    logging.getLogger("prefect.task_runs").setLevel(logging.WARNING)
    own = logger.logger if isinstance(logger, logging.LoggerAdapter) else logger
    names = ("prefect.engine", "prefect.flow_runs", "prefect.task_runs")
    for each in (own, *map(logging.getLogger, names)):
        each.addFilter(_no_traceback)  # a second time it changes nothing


def _add_tags(tags: list[str]) -> None:
    """Add tags to the current flow run; those of its deployment stay."""
    if set(tags) <= set(flow_run.tags):
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted({*flow_run.tags, *tags}))


def publish_lock(lock: Lock, folder: Place, logger: Logger) -> None:
    """The table of the lock, and the dataset card."""
    key = artifact_key(lock.name, lock.profile)
    title = f"{lock.name} {lock.profile}: {lock.root[:16]}"
    rows = _lock_table(lock)
    attempt(lambda: create_table_artifact(rows, key=f"{key}-lock", description=title), logger)
    card = folder / "README.md"
    if isinstance(card, Path) and card.is_file():
        text = f"`{folder}`\n\n{_without_links(card.read_text(encoding='utf-8'))}"
        attempt(lambda: create_markdown_artifact(text, key=f"{key}-card"), logger)


def _without_links(card: str) -> str:
    """A dataset card for the UI: no YAML head, and of links only those that a browser can open."""
    body = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    return re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", body)


def _lock_table(lock: Lock) -> list[dict[str, str]]:
    """The lock as rows of `what` and `value`."""
    rows: dict[str, Any] = {}
    for config in lock.configs:
        for split in lock.splits(config):
            shards = lock.shards_of(config, split)
            counts = {key: sum(s[key] for s in shards) for key in ("rows", "tokens")}
            for key, count in {**counts, "shards": len(shards)}.items():
                rows[f"{config} {split} {key}"] = f"{count:,}"
    rows |= {f"dropped: {key}": value for key, value in flatten(lock.drops)}
    rows |= {"content root": lock.content_root, "root": lock.root}
    # The UI makes Markdown links of cells, javascript: ones too, and it keeps the password.
    cells = ([text.replace("](", "] (") for text in (what, str(rows[what]))] for what in rows)
    return [{"what": what, "value": value} for what, value in cells]
