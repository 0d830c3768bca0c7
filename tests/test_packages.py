"""The packages that the project names do its work: with one of their functions broken, a run fails.

Of the other three: datasets in tests/pipeline/fineweb/test_hub.py (a config is what the hub's YAML
says), datasketch in tests/pipeline/fineweb/test_build.py, gitpython in
tests/pipeline/lean/test_build.py. That a flow run is in the database: tests/flows/test_command.py.
"""

from __future__ import annotations

import pytest

from tangobench.flows.__main__ import Where, through_flow
from tangobench.model.training.recipes import find
from tangobench.model.training.train import Options, train
from tangobench.pipeline import api
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.tokenizer import base


class BrokenError(RuntimeError):
    pass


@pytest.fixture
def broken(monkeypatch):
    """Replace a function of a library by one that raises."""

    def breaking(name: str) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise BrokenError(name)

        monkeypatch.setattr(name, refuse)

    base._load.cache_clear()
    yield breaking
    base._load.cache_clear()


@pytest.mark.parametrize(
    ("function", "dataset"),
    [
        ("tiktoken.Encoding", "lean"),
        ("pyarrow.ipc.new_stream", "lean"),
        ("polars.DataFrame", "fineweb"),
    ],
)
def test_a_build_uses_it(function, dataset, broken, tmp_path):
    broken(function)
    small = {"near_duplicates": "off"} if dataset == "fineweb" else {}
    with pytest.raises(BrokenError):
        api.build(dataset, out=str(tmp_path), overrides=small)


def test_a_recorded_build_goes_through_prefect(broken, tmp_path):
    broken("prefect.flow_engine.run_flow")
    broken("prefect.get_client")
    with pytest.raises(BrokenError):
        request = api.Request(name="lean", out=str(tmp_path))
        through_flow(request, Where(workers=1), Reporter(quiet=True))


def test_training_uses_torch(broken, make_toy_math, tmp_path):
    make_toy_math(tmp_path)
    broken("torch.Tensor.backward")
    run = find("sample-dm_math-tango")
    with pytest.raises(BrokenError):
        train(run, Options(out=tmp_path, stop_at=1), Reporter(quiet=True))
