"""`replicate`: train and score the six models, as a flow.

- One progress bar for the builds and runs; the tables are an artifact of the run.
- A run that is finished is kept, so the same parameters resume.

Usage: `prefect deployment run replicate -p dataset=dm_math --watch`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from pydantic import PositiveInt

from tangobench.flows._build import finish
from tangobench.flows._report import RunReporter, artifact_key, attempt

Profile = Literal["sample", "mini", "published"]


@flow(name="replicate", flow_run_name="replicate-{dataset}-{profile}", persist_result=False)
def replicate(
    profile: Profile = "sample",
    dataset: str = "dm_math",
    out: str = "out",
    source: str | None = None,
    workers: PositiveInt | None = None,
) -> State[Any]:
    """Train and score the six models of the comparison.

    Args:
        profile: sample (minutes), mini (hours) or published (days on an accelerator).
        dataset: What to train on.
        out: Parent folder of datasets, runs and results.
        source: Input of the dataset instead of the profile's own.
        workers: Runs at a time; one per core by default.
    """

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        from tangobench.eval.comparison import replicate as comparison
        from tangobench.eval.comparison.replications import summary_tables
        from tangobench.eval.render import render

        summary = comparison.replicate(
            profile,
            dataset,
            Path(out),
            workers=workers or os.cpu_count() or 1,
            source=source,
            reporter=RunReporter(logger, dataset, f"{profile}-replicate"),
        )
        text = render(summary_tables(summary), "markdown")
        key = artifact_key(dataset, profile, "tables")
        attempt(lambda: create_markdown_artifact(text, key=key, description="tables"), logger)
        return f"{dataset} {profile}: trained and scored", {"out": str(Path(out).absolute())}

    return finish(work, ["tangobench", dataset.replace("_", "-"), profile, "replicate"])
