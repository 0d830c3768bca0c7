"""What a person sees of a run in the Prefect UI: logs, one progress bar per stage, the lock.

- Log lines carry the stage and the unit's label; a stage logs at most every few seconds.
- Nothing here decides anything: an API that fails to take an artifact does not fail a build.

Usage: `api.run(request, runner, RunReporter(logger, "lean", "sample"))`.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from tangobench.errors import TangobenchError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import Reporter, units
from tangobench.pipeline.core.remote import Place

Logger = logging.Logger | logging.LoggerAdapter[Any]


def artifact_key(*words: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def plain(line: str) -> str:
    """A log line that `--watch` can print: it reads `[/…]` as markup and would stop there."""
    return line.replace("[/", "[ /")


class RunReporter(Reporter):
    """Progress of a build as logs and progress artifacts of the current flow run."""

    _every = 5.0  # seconds; each is one call of the API and one log line

    def __init__(self, logger: Logger, dataset: str, profile: str) -> None:
        super().__init__(stream=io.StringIO())  # no terminal: plain lines, which go to the log
        self._logger = logger
        self._dataset = dataset
        self._profile = profile
        self._artifact: UUID | None = None

    def start(
        self, stage: str, count: int, weight: float, parts: Mapping[str, float] | None = None
    ) -> None:
        """Open the stage's progress bar."""
        super().start(stage, count, weight, parts)
        key = artifact_key(self._dataset, self._profile, stage.removeprefix(f"{self._dataset}-"))
        self._artifact = self._try(
            lambda: create_progress_artifact(0.0, key=key, description=f"{stage}, {units(count)}")
        )
        self.say(f"{stage}: {units(count)}")

    def finish(self) -> None:
        """Close the stage's progress bar."""
        self._update(100.0)
        super().finish()

    def _draw(self, line: str) -> None:
        self._update(100.0 * self._share())
        self.say(line)

    def _write(self, text: str) -> None:
        self._logger.info(plain(text.rstrip("\n")))

    def _update(self, percent: float) -> None:
        artifact = self._artifact
        if artifact is not None:
            self._try(lambda: update_progress_artifact(artifact, progress=percent))

    def _try(self, call: Callable[[], Any]) -> Any:
        return attempt(call, self._logger)


class Both(Reporter):
    """Tells two reporters: the run's log and the terminal of the command that called the flow."""

    def __init__(self, *reporters: Reporter) -> None:
        super().__init__(quiet=True)
        self._reporters = reporters

    def say(self, line: str) -> None:
        """Print a line of its own."""
        for reporter in self._reporters:
            reporter.say(line)

    def start(
        self, stage: str, count: int, weight: float, parts: Mapping[str, float] | None = None
    ) -> None:
        """Begin a stage."""
        for reporter in self._reporters:
            reporter.start(stage, count, weight, parts)

    def advance(self, weight: float, **options: Any) -> None:
        """Count finished units."""
        for reporter in self._reporters:
            reporter.advance(weight, **options)

    def finish(self) -> None:
        """End the stage."""
        for reporter in self._reporters:
            reporter.finish()


def attempt(call: Callable[[], Any], logger: Logger) -> Any:
    """Call, or log why not: an artifact is for the eye, and the build continues without it."""
    try:
        return call()
    except Exception as error:
        logger.warning("artifact not stored: %s", error)
        return None


class _Expected(logging.Filter):
    """Drops the engine's traceback of an error that was already told in words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], TangobenchError))


def quiet_engine(logger: Logger) -> None:
    """Leave the log to the build: no engine line per task, no traceback of an expected error."""
    logging.getLogger("prefect.task_runs").setLevel(logging.WARNING)
    own = logger.logger if isinstance(logger, logging.LoggerAdapter) else logger
    for each in (own, logging.getLogger("prefect.engine"), logging.getLogger("prefect.flow_runs")):
        if not any(isinstance(known, _Expected) for known in each.filters):
            each.addFilter(_Expected())


def add_tags(tags: list[str]) -> None:
    """Add tags to the current flow run; those of its deployment stay."""
    from prefect import get_client
    from prefect.runtime import flow_run

    if set(tags) <= set(flow_run.tags):
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted({*flow_run.tags, *tags}))


def publish_lock(lock: Lock, folder: Place, logger: Logger) -> None:
    """The table of the lock, and the dataset card."""
    dataset = artifact_key(lock.name, lock.profile)
    title = f"{lock.name} {lock.profile}: {lock.root[:16]}"
    attempt(
        lambda: create_table_artifact(lock_table(lock), key=f"{dataset}-lock", description=title),
        logger,
    )
    if not isinstance(folder, Path):
        return
    card = folder / "README.md"
    if card.is_file():
        text = f"`{folder}`\n\n{without_links(card.read_text(encoding='utf-8'))}"
        attempt(lambda: create_markdown_artifact(text, key=f"{dataset}-card"), logger)


def without_links(card: str) -> str:
    """A dataset card for the UI: no YAML head, and of links only those that a browser can open."""
    body = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    return re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", body)


def lock_table(lock: Lock) -> list[dict[str, str]]:
    """The lock as rows of `what` and `value`."""
    rows: list[dict[str, str]] = []
    for config, split in dict.fromkeys((s["config"], s["split"]) for s in lock.shards):
        shards = lock.shards_of(config, split)
        name = split if config == "default" else f"{config} {split}"
        rows += [
            {"what": f"{name} rows", "value": f"{sum(s['rows'] for s in shards):,}"},
            {"what": f"{name} tokens", "value": f"{sum(s['tokens'] for s in shards):,}"},
            {"what": f"{name} shards", "value": f"{len(shards):,}"},
        ]
    rows += [{"what": f"dropped: {k}", "value": _shown(v)} for k, v in lock.drops.items()]
    rows.append({"what": "content root", "value": lock.content_root})
    return [*rows, {"what": "root", "value": lock.root}]


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
