from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.provider import ProviderProcess
from tests.runtime.outside import Outside

_numbers = count(1)


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderProcess]:
    with ProviderProcess(tmp_path_factory.mktemp("provider") / "ledger.db") as provider:
        yield provider


@pytest.fixture
def outside(provider: ProviderProcess) -> Outside:
    """An endpoint that no other test uses."""
    return Outside(provider, f"endpoint{next(_numbers)}")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "counterfoil.db")
    try:
        yield opened
    finally:
        await opened.close()
