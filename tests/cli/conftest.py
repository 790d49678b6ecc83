from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import Cli, Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as process:
        yield process


@pytest.fixture
def cli(tmp_path: Path, forks: Forks) -> Cli:
    return Cli(tmp_path, forks)
