"""One provider for a whole file: its tests keep apart by endpoint, so that they start no process each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil.testing.provider import ProviderProcess
from tests.provider.client import Caller


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderProcess]:
    with ProviderProcess(tmp_path_factory.mktemp("provider") / "ledger.db") as running:
        yield running


@pytest.fixture
def endpoint() -> str:
    return f"e{uuid.uuid4().hex[:12]}"


@pytest.fixture
def call(shared: ProviderProcess, endpoint: str) -> Caller:
    """A client of an endpoint that nobody else uses."""
    return Caller(port=shared.port, endpoint=endpoint)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ProviderProcess]:
    """A provider for a test that kills it."""
    with ProviderProcess(tmp_path / "ledger.db") as running:
        yield running
