"""What a person sees of a run in the Prefect UI: logs, one progress bar per stage, the lock.

- Log lines carry the stage and the unit's label; a stage logs at most every few seconds.
- Nothing here decides anything: an API that fails to take an artifact does not fail a build.

Usage: `api.run(request, runner, RunReporter(logger, "lean", "sample"))`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from tangobench.flows._summary import lock_table
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.progress import Reporter, duration

_UPDATE_SECONDS: Final = 2.0  # one API call each
_LOG_SECONDS: Final = 10.0

Logger = logging.Logger | logging.LoggerAdapter[Any]


def artifact_key(*words: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def plain(line: str) -> str:
    """A log line that `--watch` can print: it reads `[/…]` as markup and would stop there."""
    return line.replace("[/", "[ /")


class RunReporter(Reporter):
    """Progress of a build as logs and progress artifacts of the current flow run."""

    def __init__(self, logger: Logger, dataset: str, profile: str) -> None:
        super().__init__(quiet=True)
        self._logger = logger
        self._dataset = dataset
        self._profile = profile
        self._artifact: UUID | None = None
        self._name = ""
        self._total = self._so_far = 0.0
        self._count = self._all = self._kept = 0
        self._stage_began = self._updated = self._logged = 0.0

    def say(self, line: str) -> None:
        """A line of its own."""
        self._logger.info(plain(line))

    def start(self, stage: str, units: int, weight: float) -> None:
        """Open the stage's progress bar."""
        self._name, self._all, self._total = stage, units, weight or 1.0
        self._count = self._kept = 0
        self._so_far = 0.0
        self._stage_began = self._updated = self._logged = time.monotonic()
        key = artifact_key(self._dataset, self._profile, stage.removeprefix(f"{self._dataset}-"))
        self._artifact = self._try(
            lambda: create_progress_artifact(0.0, key=key, description=f"{stage}, {units:,} units")
        )
        self.say(f"{stage}: {units:,} units")

    def advance(self, weight: float, *, reused: bool = False, label: str = "") -> None:
        """Count one finished unit."""
        self._count += 1
        self._kept += reused
        self._so_far += weight
        now = time.monotonic()
        if now - self._updated >= _UPDATE_SECONDS:
            self._updated = now
            self._update(min(100.0, 100.0 * self._so_far / self._total))
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            self.say(f"{self._name}: {self._count:,} of {self._all:,} units, last {label}")

    def finish(self) -> None:
        """Close the stage's progress bar."""
        self._update(100.0)
        kept = f", {self._kept:,} kept from before" if self._kept else ""
        seconds = duration(time.monotonic() - self._stage_began)
        self.say(f"{self._name}: {self._count:,} units in {seconds}{kept}")

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
