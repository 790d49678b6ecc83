"""What every store must do, as cases that any store can be put through: the definition of a store.

    @pytest.mark.parametrize("case", conformance.CASES, ids=conformance.name)
    async def test_conformance(case, tmp_path):
        await conformance.check(case, lambda clock, lease: MyStore(tmp_path / "db", clock=clock, lease=lease))

It must not know what a store is made of: a case sees the protocol only, through one or several workers on one place.
"""

from __future__ import annotations

from counterfoil.testing import append_cases, keeping_cases, owner_cases
from counterfoil.testing.workers import Case, Make, Workers

CASES: tuple[Case, ...] = append_cases.CASES + owner_cases.CASES + keeping_cases.CASES


async def check(case: Case, make: Make) -> None:
    """Put a store through one case.

    Args:
        case: one of `CASES`.
        make: returns an open store on a new place, and on the same place every time it is asked by this case.

    Raises:
        AssertionError: it does not do what a store must.
    """
    workers = Workers(make)
    try:
        await case(workers)
    finally:
        await workers.close()


def name(case: Case) -> str:
    """Return a case's name."""
    return getattr(case, "__name__", str(case))
