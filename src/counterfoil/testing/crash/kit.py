"""The kit: undisturbed first, then a kill and a freeze at every window, and the control with the guard off.

Enumerated, not sampled: n = 1, 2, 3 … until a life ends without its kill firing. It must not judge, and it keeps
nothing of a case but what the judge said, unless it is told to.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from msgspec import Raw, Struct

from counterfoil.errors import DefinitionError
from counterfoil.testing.crash.cases import Case, Kill
from counterfoil.testing.crash.judge import Expected, Shape, attribute, judge
from counterfoil.testing.crash.processes import ForkServer
from counterfoil.testing.crash.report import Report, Tried, rows_of
from counterfoil.testing.crash.server import Setup
from counterfoil.testing.crash.witness import Asked, Crossed, Handed, Life, Seen
from counterfoil.testing.crash.world import Provider, Told, World

Progress = Callable[[int, int, str], None]
"""Told how many windows of how many are done, and the name of the last."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to try.

    Args:
        entry: MODULE:FLOW or FILE.py:FLOW.
        value: the run's input, a JSON value.
        depth: how many lives in a row are killed.
        freeze: freeze at every window, too.
        red: run the control with the guard off.
        only: a window's name, or a part of it: nothing else is tried.
        path: one case, and no other: the numbers of the windows at which its lives are killed.
        freeze_at: one case: the window at which it is frozen.
        prepare: MODULE:FUNCTION that each process calls first.
        behave: how the reference provider's endpoints behave.
        tell: the user's own world instead of the reference provider.
        advance: moves that world's clock on.
        workers: how many cases at a time; a world of the user's own is used by one.
        keep: a folder for the files of every case; empty: those of failed ones go to a temporary folder.
        limit_s: how long one process may take.
    """

    entry: str
    value: Any = None
    depth: int = 1
    freeze: bool = True
    red: bool = True
    only: str = ""
    path: tuple[int, ...] = ()
    freeze_at: int = 0
    prepare: str = ""
    behave: dict[str, dict[str, Any]] = {}
    tell: Any = None
    advance: Any = None
    workers: int = 0
    keep: str = ""
    limit_s: float = 60.0


def run_plan(plan: Plan, progress: Progress | None = None) -> Report:
    """Try what a plan says and report.

    Args:
        plan: what to try.
        progress: told after each window.

    Raises:
        DefinitionError: the flow cannot be loaded, does not complete undisturbed, or the plan fits no window.
    """
    if not hasattr(os, "fork"):
        raise DefinitionError("a crash test forks processes and kills them; this platform has no fork")
    if plan.depth < 1:
        raise DefinitionError(f"depth {plan.depth}: one life at least must be killed")
    with ExitStack() as stack:
        folder = Path(plan.keep) if plan.keep else Path(stack.enter_context(_scratch()))
        folder.mkdir(parents=True, exist_ok=True)
        count = 1 if plan.tell is not None else plan.workers or os.cpu_count() or 1
        workers = [stack.enter_context(Worker(plan, folder, number)) for number in range(1, count + 1)]
        return Matrix(plan, workers, progress).report()


def _given(plan: Plan) -> tuple[str, ...]:
    """Return the options that tell a repeated case the same: another input, or a better provider, may break nothing."""
    options: list[str] = []
    if isinstance(plan.value, str):
        options += ["--input", plan.value]
    elif plan.value is not None:
        options += ["--input-json", msgspec.json.encode(plan.value).decode()]
    for endpoint, behaviour in plan.behave.items():
        options += ["--behave", f"{endpoint}={msgspec.json.encode(behaviour).decode()}"]
    return tuple(options)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """In memory where there is such a place: SIGKILL takes nothing of the page cache along, so it proves as much."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of a random name is made in it
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return tempfile.TemporaryDirectory(prefix="counterfoil-crash-", dir=memory if usable else None)


class Worker:
    """A fork server and a world: tries one case after the other."""

    def __init__(self, plan: Plan, folder: Path, number: int) -> None:
        self.plan = plan
        self._folder = folder / f"worker-{number}"
        self._count = itertools.count(1)
        self._value = Raw(msgspec.json.encode(plan.value))
        self._closing = ExitStack()
        self.world: World
        if plan.tell is not None:
            self.world = Told(plan.tell, plan.advance)
        else:
            self.world = Provider(self._folder, plan.behave)
        self._closing.callback(self.world.close)
        setup = Setup(entry=plan.entry, prepare=plan.prepare, path=tuple(sys.path), limit_s=plan.limit_s)
        try:
            self.server = self._closing.enter_context(ForkServer(setup, self.world.variables))
        except BaseException:
            self._closing.close()
            raise
        self.expected = Expected(calls={}, natures=self.server.ready.tools)
        self.windows: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.close()

    def learn(self) -> None:
        """Run the flow undisturbed: first to see which call changes what, then to see which windows there are."""
        case = self._case("learn")
        changed = case.step()
        life = _completed(case.lives[0], self.plan.entry)
        tools = {handed.call: handed.tool for handed in life.all(Handed)}
        calls = {call: Shape(tool=tool, effects=changed.get(call, ())) for call, tool in tools.items()}
        told = {call: error for asked in life.all(Asked) for call, error in asked.told.items()}
        self.expected = Expected(calls=calls, natures=self.server.ready.tools, told=told)
        self._end(case, keep=False)
        case = self._case("undisturbed")
        case.live()
        life = _completed(case.lives[0], self.plan.entry)
        self.windows = tuple(record.window for record in life.all(Crossed))
        self._end(case, keep=False)

    def kill(self, path: Sequence[Kill]) -> Tried:
        """Try a case: a kill in each of its first lives, as far as they fire."""
        case = self._case("kill")
        fired = 0
        for kill in path:
            if not case.live(kill):
                break
            fired += 1
        else:
            case.live()
        return self._tried("kill", case, fired)

    def freeze(self, at: int) -> Tried:
        """Try a case: frozen at a window, taken over, woken, brought to its end."""
        case = self._case("freeze")
        fired = case.frozen(at)
        if fired:
            case.live()
        return self._tried("freeze", case, int(fired))

    def start_over(self, at: int) -> Tried:
        """Try the control: killed at a window with the guard off, and started over."""
        case = self._case("naive")
        fired = case.start_over(Kill(at=at))
        if fired:
            case.start_over()
        return self._tried("naive", case, int(fired))

    def _case(self, what: str) -> Case:
        number = next(self._count)
        run_id = f"crash-{self._folder.name}-{number}"
        return Case(self.server, self.world, self._folder / f"{what}-{number}", run_id, self._value, self._resolve)

    def _resolve(self, call: str, lives: tuple[Life, ...], effects: tuple[Seen, ...]) -> Seen | None:
        return next(iter(attribute(self.expected, lives, effects).of_call.get(call, [])), None)

    def _tried(self, how: Literal["kill", "freeze", "naive"], case: Case, fired: int) -> Tried:
        lives = tuple(case.lives)
        effects = self.world.effects()
        broken = judge(self.expected, lives, effects, naive=how == "naive")
        marks = [life.fired for life in lives if life.fired is not None]
        tried = Tried(
            how=how,
            path=tuple(mark.number for mark in marks),
            windows=tuple(mark.window for mark in marks),
            fired=fired,
            lives=len(lives),
            effects=len(effects),
            asks=sum(len(life.all(Asked)) for life in lives),
            unknown=any(life.act == "person" for life in lives),
            broken=broken,
            folder=str(case.folder) if self.plan.keep else "",
        )
        self._end(case, keep=bool(self.plan.keep))
        return tried

    def _end(self, case: Case, *, keep: bool) -> None:
        case.close()
        if not keep:
            shutil.rmtree(case.folder, ignore_errors=True)


def _completed(life: Life, entry: str) -> Life:
    if life.ended is not None and life.ended.status == "completed":
        return life
    if life.raised is not None:
        what = f"{life.raised.error}: {life.raised.message}"
    elif life.ended is not None:
        why = "; ".join(part for part in (life.ended.because, life.ended.note) if part)
        what = f"it is left {life.ended.status} ({why})"
    else:
        what = f"its process ended with code {life.code}: {life.output.strip()[-500:]}"
    raise DefinitionError(
        f"{entry} does not complete undisturbed, so it cannot be crash-tested: {what}",
        remedy="Make `counterfoil run` complete with this input first.",
    )


class Matrix:
    """Tries all cases of a plan on some workers."""

    def __init__(self, plan: Plan, workers: Sequence[Worker], progress: Progress | None) -> None:
        self._plan = plan
        self._workers = list(workers)
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0

    def report(self) -> Report:
        """Try everything and report."""
        began = time.monotonic()
        for worker in self._workers:
            worker.learn()
        tried = list(self._tried())
        red = list(self._red()) if self._plan.red and not self._plan.path and not self._plan.freeze_at else []
        first = self._workers[0]
        blind = [
            f"{shape.tool} {call}"
            for call, shape in first.expected.calls.items()
            if first.expected.nature(shape.tool).effect and not shape.effects
        ]
        return Report(
            flow=first.server.ready.name,
            entry=self._plan.entry,
            given=_given(self._plan),
            depth=max(self._plan.depth, len(self._plan.path)),
            rows=rows_of(tried),
            failures=tuple(one for one in tried if one.broken),
            red=tuple(red),
            blind=tuple(blind),
            judged=sum(bool(shape.effects) for shape in first.expected.calls.values()),
            cases=len(tried),
            kills=sum(one.fired for one in tried if one.how == "kill"),
            freezes=sum(one.fired for one in tried if one.how == "freeze"),
            seconds=time.monotonic() - began,
        )

    def _tried(self) -> Iterator[Tried]:
        plan = self._plan
        if plan.path:
            yield self._workers[0].kill([Kill(at=number) for number in plan.path])
            return
        if plan.freeze_at:
            yield self._workers[0].freeze(plan.freeze_at)
            return
        names = self._workers[0].windows
        numbers = [number for number, name in enumerate(names, start=1) if plan.only in name]
        if not numbers:
            raise DefinitionError(f"no window's name holds {plan.only!r}", remedy=f"There are: {', '.join(names)}.")
        self._total = len(numbers) * (1 + plan.freeze)
        done = self._each(lambda worker, number: self._from(worker, (number,)), numbers)
        yield from done
        yield from self._missed(done, names)
        if not plan.only:
            yield from self._beyond(len(numbers) + 1, lambda worker, number: self._from(worker, (number,)))
        if plan.freeze:
            yield from self._each(lambda worker, number: [worker.freeze(number)], numbers)
            if not plan.only:
                yield from self._beyond(len(numbers) + 1, lambda worker, number: [worker.freeze(number)])

    def _from(self, worker: Worker, path: tuple[int, ...]) -> list[Tried]:
        """Kill at a path of windows; then, to the depth, at each window of the life after it."""
        tried = worker.kill([Kill(at=number) for number in path])
        if len(path) == self._plan.depth or tried.fired < len(path):
            return [tried]
        found = [tried]
        for number in itertools.count(1):
            deeper = self._from(worker, (*path, number))
            found += deeper
            if deeper[0].fired <= len(path):
                return found
        raise AssertionError("a life crosses a finite number of windows")

    def _missed(self, done: list[Tried], names: Iterable[str]) -> list[Tried]:
        """Where calls run beside each other, a number is not always the same window: kill by name what was missed."""
        killed = {one.windows[0] for one in done if one.windows}
        missed = [name for name in dict.fromkeys(names) if self._plan.only in name and name not in killed]
        return self._each(lambda worker, name: [worker.kill([Kill(on=name)])], missed)

    def _beyond(self, number: int, work: Callable[[Worker, int], list[Tried]]) -> Iterator[Tried]:
        """Go on until a life ends without its kill firing: only that proves that every window was met."""
        while True:
            tried = work(self._workers[0], number)
            yield from tried
            if not tried[0].fired:
                return
            number += 1

    def _red(self) -> Iterator[Tried]:
        return self._beyond(1, lambda worker, number: [worker.start_over(number)])

    def _each(self, work: Callable[[Worker, Any], list[Tried]], items: Sequence[Any]) -> list[Tried]:
        """Do something for each item, on all workers at a time."""
        free = list(self._workers)

        def one(item: Any) -> list[Tried]:
            with self._lock:
                worker = free.pop()
            try:
                found = work(worker, item)
            finally:
                with self._lock:
                    free.append(worker)
            self._tell(found)
            return found

        with ThreadPoolExecutor(len(self._workers)) as pool:
            return [tried for found in pool.map(one, items) for tried in found]

    def _tell(self, found: list[Tried]) -> None:
        with self._lock:
            self._done += 1
            if self._progress is not None:
                windows = found[0].windows
                self._progress(min(self._done, self._total), self._total, windows[0] if windows else "")
