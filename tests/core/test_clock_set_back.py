"""A provider's window is not made longer by a clock that was set back between two lives."""

from datetime import UTC, datetime, timedelta

import pytest

from counterfoil.core.contracts import Keyed, Terms
from counterfoil.core.evidence import Facts
from counterfoil.core.recovery import remembers

HOUR = timedelta(hours=1)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
KEYED = Keyed(remembered_for=HOUR, margin=timedelta(0))


@pytest.mark.parametrize(
    "latest, now, remembered",
    [
        (None, FIRST, True),
        (FIRST, FIRST, True),
        (FIRST + HOUR / 2, FIRST, True),
        (FIRST + HOUR, FIRST, False),
        (FIRST + 3 * HOUR, FIRST + HOUR / 2, False),
        (FIRST, FIRST + HOUR, False),
        (FIRST + 3 * HOUR, FIRST - HOUR, False),
    ],
)
def test_it_is_as_late_as_the_latest_event_at_least(latest: datetime | None, now: datetime, remembered: bool) -> None:
    facts = Facts(open=True, first_sent_at=FIRST, latest=latest)
    assert remembers(KEYED, Terms(contract=KEYED), facts, now) is remembered
