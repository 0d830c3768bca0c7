"""`build-fineweb`, `build-lean`, `build-dm-math`: flows with all that a build takes.

- Parameters are validated by Prefect before anything runs.
- The same root as `tangobench build` with the same options.

Usage: `prefect deployment run build-lean -p profile=mini -p 'overrides={"context": 4096}'`.
"""

from __future__ import annotations

from typing import Any, Final

from prefect import Flow, flow
from prefect.client.schemas.objects import State
from pydantic import NonNegativeFloat, PositiveInt

from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.flows._build import OWN_DATA, Profile, Where, flow_run_name, in_flow, request_of
from tangobench.flows._runner import RunnerKind
from tangobench.pipeline.core.remote import PATIENCE


def _flow_of(dataset: str) -> Flow[..., State[Any]]:
    def build(  # noqa: PLR0913, PLR0917 - what a build takes
        profile: Profile = "sample",
        source: str | None = None,
        out: str = "out",
        store: str | None = None,
        manifest: str | None = None,
        name: str | None = None,
        kind: str | None = None,
        title: str = "",
        licence: str = "",
        source_url: str = "",
        stream: bool = False,
        patience: NonNegativeFloat = PATIENCE,
        overrides: dict[str, Any] | None = None,
        config: str | None = None,
        commit: str | None = None,
        root: str | None = None,
        holdout: list[str] | None = None,
        workers: PositiveInt | None = None,
        runner: RunnerKind = "processes",
        address: str | None = None,
    ) -> State[Any]:
        """Build a dataset into OUT/DATASET-PROFILE.

        Args:
            profile: sample (embedded input), mini (real sources) or paper (published sizes).
            source: Input instead of the profile's own: a folder, a repository or an address.
            out: Parent folder of the dataset.
            store: Unit store, a folder or an fsspec address; OUT/.units by default.
            manifest: A spec of your own, a TOML file.
            name: Name of a dataset of your own.
            kind: What builds a dataset of your own.
            title: Title of the dataset card.
            licence: Licence of your own input, as an SPDX id.
            source_url: Where your own input can be found.
            stream: fineweb: read in ranges instead of downloading once.
            patience: Seconds that a source may send nothing.
            overrides: Keys of the spec and their values, as `--set` on the command line.
            config: fineweb: train on this config of the hub.
            commit: lean: another commit than the spec's.
            root: lean: another folder of the repository.
            holdout: lean: folders that become validation, instead of the hashed share.
            workers: Worker processes; one per core by default.
            runner: processes on this machine, or dask.
            address: Dask scheduler, tcp://HOST:PORT.
        """
        given = locals()
        where = Where(workers=workers, runner=runner, address=address)
        return in_flow(request_of(dataset, given), where)

    if dataset == OWN_DATA:
        build.__annotations__["profile"] = str  # whatever the manifest calls them
    title = f"build-{dataset.replace('_', '-')}"
    return flow(name=title, flow_run_name=flow_run_name(dataset), persist_result=False)(build)


BUILDS: Final = {name: _flow_of(name) for name in (*CATALOGUE, *TEST_SETS, OWN_DATA)}
build_fineweb = BUILDS["fineweb"]
build_lean = BUILDS["lean"]
build_dm_math = BUILDS["dm_math"]
