"""One deployed project for the tests of this folder."""

from __future__ import annotations

import pytest
from deployed import Project


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    started = project.server("up")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield project
    finally:
        project.server("down")
