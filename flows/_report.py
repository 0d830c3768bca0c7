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
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from tangobench.errors import TangobenchError
from tangobench.flows._summary import lock_table
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.progress import Reporter, units

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


def attempt(call: Callable[[], Any], logger: Logger) -> Any:
    """Call, or log why not: an artifact is for the eye, and the build goes on without it."""
    try:
        return call()
    except Exception as error:
        logger.warning("artifact not stored: %s", error)
        return None


class _Expected(logging.Filter):
    """Drops the engine's traceback of an error that was already told in words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], TangobenchError))


def without_tracebacks(logger: Logger) -> None:
    """A user's mistake is a message in the log and in the state, not thirty lines of engine."""
    own = logger.logger if isinstance(logger, logging.LoggerAdapter) else logger
    for each in (own, logging.getLogger("prefect.engine"), logging.getLogger("prefect.flow_runs")):
        if not any(isinstance(known, _Expected) for known in each.filters):
            each.addFilter(_Expected())


def add_tags(tags: list[str]) -> None:
    """Add tags to the current flow run; those of its deployment stay."""
    from prefect import get_client
    from prefect.runtime import flow_run

    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted({*flow_run.tags, *tags}))


def publish_lock(lock: Lock, folder: Path, logger: Logger) -> None:
    """The table of the lock, the dataset card, and a link to it."""
    dataset = artifact_key(lock.name, lock.profile)
    title = f"{lock.name} {lock.profile}: {lock.root[:16]}"
    attempt(
        lambda: create_table_artifact(lock_table(lock), key=f"{dataset}-lock", description=title),
        logger,
    )
    card = folder / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8")
        attempt(lambda: create_markdown_artifact(text, key=f"{dataset}-card"), logger)
    site = folder.parent / "report" / "index.html"
    report = site if site.is_file() else card
    attempt(
        lambda: create_link_artifact(
            report.as_uri(), link_text=str(report), key=f"{dataset}-report", description="report"
        ),
        logger,
    )
