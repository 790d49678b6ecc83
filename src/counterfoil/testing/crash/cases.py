"""One case: a run in a store of its own, a kill or a freeze in each life that is to have one, and a last life without.

It must not judge. What happened is handed on: the lives, and what the world showed after each.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from counterfoil.testing.crash.child import LEASE, Task, Word
from counterfoil.testing.crash.processes import ForkServer
from counterfoil.testing.crash.server import State
from counterfoil.testing.crash.shared_clock import SharedClock
from counterfoil.testing.crash.windows import Order
from counterfoil.testing.crash.witness import Life, Seen, read
from counterfoil.testing.crash.world import World

MOST_PROCESSES = 40
"""In one life: a run that still waits after so many resumes is stuck."""

_OUTPUT_SHOWN = 4000

Resolver = Callable[[str, tuple[Life, ...], tuple[Seen, ...]], Seen | None]
"""Says which effect in the world is an unknown call's, or that it has none: what a person finds out by looking."""


class Kill(Struct, frozen=True, kw_only=True):
    """Where a life ends: at a number, or at the first window of a name."""

    at: int = 0
    on: str = ""


class Case:
    """A run under way.

    Args:
        server: forks its processes.
        world: where its effects happen.
        folder: for its files; made here.
        run_id: of the run. Keys are made of it, so it is used once.
        value: the run's input.
        resolve: what a person finds who looks into the world.
    """

    def __init__(
        self, server: ForkServer, world: World, folder: Path, run_id: str, value: Raw, resolve: Resolver
    ) -> None:
        folder.mkdir(parents=True)
        world.mark()
        self.folder = folder
        self.lives: list[Life] = []
        self._server = server
        self._world = world
        self._run_id = run_id
        self._value = value
        self._resolve = resolve
        self._clock = SharedClock(folder / "clock")
        self._moved_s = 0.0
        self._beside = False

    def close(self) -> None:
        """Let go of the clock."""
        self._clock.close()

    def live(self, kill: Kill | None = None, *, person: bool = True) -> bool:
        """Let one life run: the processes that it takes until the run ends, or until the kill.

        A run that waits is resumed at once, with the clock moved on to what it waits for. One that is unknown is
        settled by a person who looks into the world, and resumed.

        Args:
            kill: where it ends.
            person: whether a person is at hand.

        Returns:
            Whether the kill fired.
        """
        kill = kill or Kill()
        crossed = 0
        for _ in range(MOST_PROCESSES):
            life = self._process("run", self._order(kill, crossed))
            if life.fired:
                return True
            crossed = life.crossed
            ended = life.ended
            if ended is None:
                return False
            if ended.status == "waiting" and not person:
                return False  # It waits for the frozen one's end, and that one is to be woken.
            if ended.status == "waiting":
                self._wait_until(ended.until)
            elif ended.status == "unknown" and person and ended.unknown:
                for call in ended.unknown:
                    spoken = self._process("person", self._order(kill, crossed), word=self._word(call))
                    if spoken.fired:
                        return True
                    crossed = spoken.crossed
            else:
                return False
        return False

    def start_over(self, kill: Kill | None = None) -> bool:
        """Run the flow with the guard off; return whether the kill fired."""
        return self._process("naive", self._order(kill or Kill(), 0)).fired is not None

    def frozen(self, at: int) -> bool:
        """Freeze a life at a window, let another take over, wake the first; return whether it froze.

        The first comes to its end before anybody else acts again.
        """
        first = self._begin("run", Order(freeze_at=at))
        state = self._server.fork(first)
        place, asked = len(self.lives), self._note(first, state).requests
        if state.code is not None:
            return False
        self._advance(LEASE + timedelta(milliseconds=100))
        self._beside = True
        self.live(person=False)
        self._beside = False
        state = self._server.go_on(state.pid)
        self.lives[place] = replace(self._told(first, state), requests=asked)
        return True

    def step(self) -> dict[str, tuple[Seen, ...]]:
        """Run the flow undisturbed, one call after the other; return what each call changed in the world."""
        task = self._begin("run", Order(step=True), one_by_one=True)
        found: dict[str, tuple[Seen, ...]] = {}
        state, before = self._server.fork(task), self._world.effects()
        while state.code is None:
            window = self._told(task, state).stands_at
            now = self._world.effects()
            if window.endswith(" after"):
                call = window.partition("[")[2].partition("]")[0].partition(",")[0].rpartition(" ")[2]
                found[call] = (*found.get(call, ()), *now[len(before) :])
            before = now
            state = self._server.go_on(state.pid)
        self._note(task, state)
        return found

    def _process(self, act: Literal["run", "naive", "person"], order: Order, word: Word | None = None) -> Life:
        task = self._begin(act, order, word=word)
        state = self._server.fork(task)
        if state.code is None:
            state = self._server.end(state.pid)
        return self._note(task, state)

    def _begin(
        self,
        act: Literal["run", "naive", "person"],
        order: Order,
        *,
        one_by_one: bool = False,
        word: Word | None = None,
    ) -> Task:
        return Task(
            act=act,
            folder=str(self.folder),
            number=len(self.lives) + 1,
            run_id=self._run_id,
            value=self._value,
            order=order,
            one_by_one=one_by_one,
            word=word,
        )

    def _note(self, task: Task, state: State) -> Life:
        life = self._told(task, state)
        self.lives.append(life)
        return life

    def _told(self, task: Task, state: State) -> Life:
        records = read(task.witness)
        life = Life(
            number=task.number,
            act=task.act,
            records=records,
            code=state.code,
            effects=self._world.effects(),
            requests=self._world.requests(),
            moved_s=self._moved_s,
            beside=self._beside,
        )
        if state.code in (0, None) or life.fired:
            return life
        return replace(life, output=(self.folder / "output.txt").read_text(errors="replace")[-_OUTPUT_SHOWN:])

    def _order(self, kill: Kill, crossed: int) -> Order:
        return Order(kill_at=kill.at, kill_on=kill.on, crossed=crossed)

    def _word(self, call: str) -> Word:
        found = self._resolve(call, tuple(self.lives), self._world.effects())
        if found is None:
            return Word(call=call, applied=False)
        return Word(call=call, applied=True, receipt=found.receipt)

    def _wait_until(self, moment: str) -> None:
        if not moment:
            return
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)
        self._advance(max(datetime.fromisoformat(moment) - now, timedelta(0)) + timedelta(milliseconds=1))

    def _advance(self, span: timedelta) -> None:
        self._clock.advance(span)
        self._world.advance(span.total_seconds())
        self._moved_s += span.total_seconds()
