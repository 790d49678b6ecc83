from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil.testing.provider import ProviderProcess
from tests.incidents.life import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ProviderProcess(tmp_path / "ledger.db") as provider:
        yield Bench(tmp_path, provider)
