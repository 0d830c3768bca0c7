"""Workflows: actions are pinned, and their make targets also run against a hub on loopback."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from little_hub import COMMIT, REPOSITORY, LittleHub, write_repository

from tangobench.pipeline.core.shard_reader import verify

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_commands_are_make_targets(path):
    pinned = re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+\n", path.read_text())
    assert pinned and len(pinned) == sum("uses" in step for step in steps(path))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"].split() for step in steps(path) if "run" in step]
    made = [words[words.index("make") + 1 :] for words in commands if "make" in words]
    asked = {word for words in made for word in words if "=" not in word}
    assert asked and asked <= targets


def test_the_nightly_run_has_every_slow_target_and_injects_faults_as_root():
    """Without root the faults of hosts, mounts and clocks would be skipped."""
    commands = [step["run"] for step in steps(WORKFLOWS[-1]) if "run" in step]
    assert WORKFLOWS[-1].name == "nightly.yml"
    assert 'sudo env PATH="$PATH" make test-faults' in commands
    assert {"make test-scale", "make test-slow", "make test-mutations"} <= set(commands)


@pytest.mark.slow
def test_the_scheduled_build_runs_against_a_hub_on_loopback(tmp_path):
    scheduled = steps(ROOT / ".github" / "workflows" / "mini.yml")
    hub = LittleHub(write_repository(tmp_path / "repository"))
    keys = f"allow_fewer=true context=128 hub.repository={REPOSITORY} hub.revision={COMMIT}"
    more = [f"OUT={tmp_path / 'out'}", f"SET={keys}", "WORKERS=1"]
    there = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    try:
        for step in scheduled:
            if "run" in step:
                words = [*step["run"].split(), *more]
                subprocess.run(words, cwd=ROOT, env={**os.environ, **there}, check=True)
    finally:
        hub.close()
    lock = tmp_path / "out/fineweb-mini/manifest.lock.json"
    assert any(str(lock).endswith(step.get("with", {}).get("path", "?")) for step in scheduled)
    assert "groups" in verify(lock.parent).data["source"]["files"][0] and lock.is_file()
