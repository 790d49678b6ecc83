"""A small world that knows the truth: processes that run, freeze and die, a provider, a store clock, a person.

It drives the real fold, plan and mailbox by doing what `next_action` says and writing the events that a runtime would
write, and it judges by what truly happened at the provider. It must not ask the code under test what is right.

Stated exceptions (DESIGN section 2), and no others: a sender that stalled between its last check and its send, and
sent after the provider had forgotten the key, makes a second effect under `Keyed`; a `Repeatable` repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Raw

from counterfoil.core import plan
from counterfoil.core.codec import decode, encode
from counterfoil.core.contracts import (
    Bounds,
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Terms,
    Transactional,
)
from counterfoil.core.events import (
    Answer,
    AskFailed,
    AttemptEnded,
    Cancelled,
    Completed,
    Decided,
    Dispatched,
    Ending,
    Event,
    Failed,
    Failure,
    IncidentRaised,
    LifeBegan,
    LookedUp,
    Paused,
    PlannedCall,
    Proof,
    Receipt,
    Recorded,
    Rejected,
    RunStarted,
    SenderObserved,
    SenderProof,
    SenderReleased,
    Status,
    TurnOpened,
    UnknownDeclared,
    Verdict,
)
from counterfoil.core.flow import Difference, FlowManifest, ToolManifest
from counterfoil.core.limits import Limits
from counterfoil.core.mail import Cancel, Evidence, GiveVerdict, Item, absorb, decode_item, encode_item
from counterfoil.core.recovery import Ask, Dispatch, Observe, Reject, Settle, Unknown
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState, Outcome, RunState, apply, fold

T = TypeVar("T")
Choose = Callable[[str, Sequence[Any]], Any]

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOMENT = timedelta(milliseconds=10)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


TIMEOUT, PROOF_WITHIN, REPEATS, LOOKUPS = seconds(10), seconds(20), 2, 3
REMEMBERED, MARGIN, SETTLES_IN = seconds(100), seconds(5), seconds(6)
LEASE = seconds(2)

LOOKUP = Lookup(settles_in=SETTLES_IN)
KEYED = Keyed(remembered_for=REMEMBERED, margin=MARGIN)
EAGER = Keyed(remembered_for=REMEMBERED, margin=MARGIN, lookup_first=True)

KINDS: dict[str, tuple[Contract, bool]] = {
    # the contract, and whether the tool has a lookup function
    "keyed": (KEYED, False),
    "keyed | lookup": (KEYED | LOOKUP, True),
    "keyed, lookup first": (EAGER | LOOKUP, True),
    "keyed, key of unknown age": (Keyed(), False),
    "lookup": (LOOKUP, True),
    "client id": (ClientId(), True),
    "client id, blind": (ClientId(), False),
    "client id, lookup first": (ClientId(lookup_first=True), True),
    "client id | lookup": (ClientId() | LOOKUP, True),
    "transactional": (Transactional(settles_in=SETTLES_IN), True),
    "one shot": (OneShot(), False),
    "repeatable": (Repeatable(), False),
    "repeatable | lookup": (Repeatable() | LOOKUP, True),
    "read": (Read(), False),
}


class Broken(AssertionError):
    """A promise was broken."""


class LifeOver(Exception):
    """The process that drives the run was killed, frozen, or left."""


# ---- the provider


@dataclass
class Request:
    """What reached the provider, and what truly came of it."""

    call: str
    arguments: bytes
    scope: str
    sent_at: datetime
    stalled: timedelta
    lands_at: datetime
    shows_at: datetime
    effect: bool = False
    reply: str = "done"
    forgotten: bool = False
    same_as: Request | None = None

    @property
    def result(self) -> Raw:
        first = self.same_as or self
        return Raw(b'{"at":"%s"}' % first.sent_at.isoformat().encode())


@dataclass
class Provider:
    """Keeps what the tool's contract promises of it, to the last moment, and nothing more."""

    kind: str
    choose: Choose
    foreign: bool = False
    requests: list[Request] = field(default_factory=list)

    def receive(self, request: Request) -> Request:
        """Take a request that has left its sender. What it comes to is fixed now, and happens at its time."""
        self.requests.append(request)
        if self.choose("provider", ("takes it", "takes it", "takes it", "refuses")) == "refuses":
            request.reply = "refused"
            return request
        earlier = [each for each in self.requests if each.effect and each.scope == request.scope]
        if self.kind.startswith("keyed"):
            return self._keyed(request, earlier)
        if self.kind.startswith(("client id", "transactional")) and (earlier or self.foreign):
            request.reply = "exists"
            return request
        request.effect = self.kind != "read"
        return request

    def _keyed(self, request: Request, earlier: list[Request]) -> Request:
        known = [each for each in earlier if not each.same_as and request.sent_at < each.sent_at + REMEMBERED]
        if not known:
            request.effect = True
            request.forgotten = bool(earlier)
        elif known[-1].arguments != request.arguments:
            request.reply = "mismatch"
        else:
            request.same_as = known[-1]
            request.lands_at = max(request.lands_at, known[-1].lands_at)
        return request

    def effects(self, arguments: bytes | None = None) -> list[Request]:
        return [each for each in self.requests if each.effect and arguments in (None, each.arguments)]

    def look(self, scope: str, at: datetime) -> list[Request]:
        return [each for each in self.effects() if each.scope == scope and each.shows_at <= at]


# ---- processes


@dataclass
class Flight:
    """One attempt as it truly goes: ``entered`` may still send, ``sent`` waits for a reply, ``over`` is over."""

    call: str
    number: int
    arguments: bytes
    scope: str
    began: datetime
    stage: str = "entered"
    request: Request | None = None
    straggling: bool = False


@dataclass
class Process:
    """One life's process. ``provable``: whether its owner file still says what its lease row says."""

    fence: int
    provable: bool
    state: str = "running"
    flights: list[Flight] = field(default_factory=list)


@dataclass
class Tool:
    name: str
    kind: str
    parallel: bool
    children: bool

    @property
    def contract(self) -> Contract:
        return KINDS[self.kind][0]

    @property
    def can_look(self) -> bool:
        return KINDS[self.kind][1]

    def terms(self, scope: str) -> Terms:
        bounds = Bounds(timeout=TIMEOUT, repeats=REPEATS, lookups=LOOKUPS, proof_within=PROOF_WITHIN)
        return Terms(contract=self.contract, bounds=bounds, scope=scope, children=self.children)


# ---- what anybody could know who read the journal, written down a second time


@dataclass
class Seen:
    """One attempt as the journal's readers know it."""

    fence: int
    open: bool = True
    ended_at: datetime | None = None
    living_since: datetime | None = None


@dataclass
class Book:
    """What is publicly known of one call: kept by hand from the events, without the fold."""

    attempts: dict[int, Seen] = field(default_factory=dict)
    first_at: datetime | None = None
    scope: str = ""
    forgiven: int = 0
    cleared: bool = False
    refused: bool = False
    exists: bool = False
    asks: int = 0
    answer: Answer | None = None
    matches: bool = False
    asked_at: datetime | None = None
    not_before: datetime | None = None
    settled: str = ""
    dispatched_late: bool = False

    def new_question(self) -> None:
        self.asks, self.answer, self.asked_at, self.not_before, self.matches = 0, None, None, None, False

    @property
    def open(self) -> list[Seen]:
        return [attempt for attempt in self.attempts.values() if attempt.open]


class World:
    """One run's whole story."""

    def __init__(self, choose: Choose, *, kind: str | None = None, restores: bool = False) -> None:
        self.choose = choose
        self.now = START
        self.journal: list[Recorded] = []
        self.state: RunState | None = None
        self.processes: list[Process] = []
        self.orphans: list[Flight] = []
        self.mail: list[tuple[int, str, bytes]] = []
        self.books: dict[str, Book] = {}
        self.fence = 0
        self.lives = 0
        self.steps = 0
        self.restored = False
        self.heard_of_loss = START
        self.restores = restores
        self.version = 0
        self.scope = "eu"
        self.flow = "right"
        self.healing = False
        self.draining = False
        self.told: dict[str, set[bytes]] = {}
        self.abandoned: set[str] = set()
        kinds = (kind,) if kind else tuple(KINDS)
        self.turns: list[list[Tool]] = []
        for turn in range(choose("turns", (1, 1, 2))):
            beside = choose("parallel", (False, True))
            tools = []
            for position in range(choose("calls", (1, 1, 2))):
                picked = choose("kind", kinds)
                children = picked not in ("read", "transactional") and choose("children", (False,) * 5 + (True,))
                tools.append(Tool(f"t{turn + 1}{position + 1}", picked, beside, children))
            self.turns.append(tools)
        self.tools = {tool.name: tool for tools in self.turns for tool in tools}
        self.providers = {
            tool.name: Provider(tool.kind, choose, foreign=self._foreign(tool)) for tool in self.tools.values()
        }
        # Each fault: after how many perils since the one before, and what.
        self.faults = [
            (choose("after", range(14)), choose("fault", ("kill", "kill", "freeze")))
            for _ in range(choose("faults", (0, 1, 2, 3, 5)))
        ]
        self.perils = 0

    def _foreign(self, tool: Tool) -> bool:
        return tool.kind.startswith("client id") and self.choose("id is taken", (False,) * 7 + (True,))

    # ---- the story

    def play(self) -> None:
        """Play it to its end, and judge."""
        manifest = FlowManifest(
            name="flow",
            version="1",
            tools={tool.name: ToolManifest(contract=tool.contract) for tool in self.tools.values()},
        )
        limits = Limits(calls=self.choose("limit", (None, None, 50)))  # with a limit reads are recorded, too
        self.append(RunStarted(flow=manifest, input=Raw(b"{}"), input_digest="d", limits=limits), fence=0)
        for _ in range(12):
            if self.run.status.terminal:
                break
            self.between_lives()
            self.live()
        self.heal()
        self.judge()

    def heal(self) -> None:
        """No more faults: whoever can still wake does so, everything lands, a person settles what is unknown."""
        self.healing, self.faults, self.scope, self.flow, self.draining = True, [], "eu", "right", False
        self.now += seconds(self.choose("long after", (0, 130)))
        for process in self.processes:
            if process.state == "frozen":
                self.wake(process)
        self.step_orphans()
        for _ in range(20):
            if self.run.status.terminal:
                break
            if self.run.status is Status.UNKNOWN:
                self.person()
            self.now += seconds(1)
            self.live()
        if not self.run.status.terminal:
            raise Broken(f"the run does not end: it is {self.run.status} ({self.run.paused})")
        self.step_orphans()
        self.now += seconds(60)
        self.live()

    @property
    def run(self) -> RunState:
        assert self.state is not None
        return self.state

    # ---- time, faults and what others do meanwhile

    def peril(self) -> None:
        """A point at which the process may die or freeze."""
        self.now += MOMENT
        if not self.faults:
            return
        after, fault = self.faults[0]
        if self.perils < after:
            self.perils += 1
            return
        self.faults.pop(0)
        self.perils = 0
        self.end_life("dead" if fault == "kill" else "frozen")

    def end_life(self, state: str) -> None:
        if state == "dead":
            self.kill(self.processes[-1])
        self.processes[-1].state = state
        raise LifeOver

    def kill(self, process: Process) -> None:
        process.state = "dead"
        for flight in process.flights:
            if flight.stage == "entered" and self.tools[self.tool_of(flight.call)].children:
                self.orphans.append(flight)  # a child of its own outlives it, and may still send

    def between_lives(self) -> None:
        choose = self.choose
        self.now += LEASE + seconds(choose("gap", (0, 3, 7, 25, 60, 130)))
        if not self.restores:  # where a lost dispatch went is lost with it
            self.scope = choose("scope", ("eu",) * 5 + ("us",))
        self.flow = choose("flow", ("right",) * 6 + ("changed", "changed, no lookup", "tool missing"))
        self.draining = False
        self.others()
        if self.restores and self.choose("restore", (False, False, True)):
            self.restore()
        if self.choose("cancel", (False,) * 19 + (True,)):
            self.post(f"cancel:{self.now}", Cancel(by="dana"))
        if self.run.status is Status.UNKNOWN and self.choose("person", (False, True)):
            self.person()

    def others(self) -> None:
        """A frozen process wakes, an orphan sends."""
        frozen = [process for process in self.processes if process.state == "frozen"]
        fate = self.choose("frozen", ("stays", "stays", "wakes", "is killed")) if frozen else "stays"
        if fate == "wakes":
            self.wake(self.choose("who", frozen))
        elif fate == "is killed":
            self.kill(self.choose("who", frozen))
        if self.orphans and self.choose("orphan", (False, True)):
            self.step_orphans()

    def step_orphans(self) -> None:
        for flight in self.orphans:
            self.send(flight)
            flight.stage = "over"
        self.orphans = []

    def restore(self) -> None:
        """The operator stops everything, puts an older copy of the store in place, and says so."""
        for process in self.processes:
            process.state = "dead"
            for flight in process.flights:
                flight.stage = "over"
        self.orphans = []
        cut = self.choose("cut", range(1, len(self.journal) + 1))
        del self.journal[cut:]
        self.state = fold(self.journal)
        self.mail = [item for item in self.mail if item[0] <= self.run.mail]
        self.rebuild_books()
        self.abandoned = set(self.run.abandoned)
        lost = [f for p in self.processes for f in p.flights if f.request and f.request.reply == "done"]
        if lost and self.choose("late reply after the restore", (False, True)):
            flight = self.choose("whose", lost)
            process = next(each for each in self.processes if flight in each.flights)
            self.post_evidence(process, self.reply(flight))
        self.restored = True
        self.told = {}
        self.version += self.choose("another decision", (0, 0, 1))

    def wake(self, process: Process) -> None:
        """A superseded process goes on where it was: it may send, but it can write evidence only. Then it ends."""
        for flight in process.flights:
            if flight.stage == "entered":
                if self.choose("last check", ("was passed", "is made")) == "is made":
                    flight.stage = "over"
                    ended = AttemptEnded(call=flight.call, attempt=flight.number, ending=Ending.NOT_SENT)
                    self.post_evidence(process, ended)
                    continue
                self.send(flight)
            reply = self.choose("late reply", ("comes", "is lost", "is lost with it")) if flight.request else ""
            if reply == "comes":
                self.post_evidence(process, self.reply(flight))
            elif reply == "is lost":
                self.post_evidence(process, SenderReleased(call=flight.call, attempt=flight.number))
            flight.stage = "over"
            if reply == "is lost with it":
                return self.kill(process)
        process.state = "released"
        return None

    def post_evidence(self, process: Process, fact: Event) -> None:
        assert isinstance(fact, (Receipt, AttemptEnded, SenderReleased))
        if isinstance(fact, Receipt):
            self.hear(fact)
        item_id = f"{process.fence}:{fact.call}:{fact.attempt}:{type(fact).__name__}"
        self.post(item_id, Evidence(sender=process.fence, fact=fact))

    def hear(self, fact: Receipt) -> None:
        if fact.proof is not Proof.OPERATOR and not self.kind(self.tool_of(fact.call)).startswith("re"):
            self.told.setdefault(fact.call, set()).add(bytes(fact.result))

    def post(self, item_id: str, item: Item) -> None:
        if all(known != item_id for _, known, _ in self.mail):
            self.mail.append(
                (len(self.mail) + 1 if not self.mail else self.mail[-1][0] + 1, item_id, encode_item(item))
            )

    def person(self) -> None:
        """A person settles an unknown call by the truth: ends every sender, lets everything land, looks, says."""
        call = next((each for each in self.run.calls if each.unknown is not None and each.outcome is None), None)
        if call is None:
            return
        seen = self.run.position
        for process in self.processes:
            if process.state != "running":
                process.state = "dead" if process.state == "frozen" else process.state
                for flight in process.flights:
                    flight.stage = "over"
        self.orphans = [flight for flight in self.orphans if flight.call != call.id]
        self.now += seconds(10)
        arguments = bytes(call.planned.arguments)
        effects = self.providers[call.planned.tool].effects(arguments)
        what: dict[str, Any] = {"call": call.id, "by": "dana", "reason": "looked", "seen": seen}
        if effects:
            item = GiveVerdict(verdict=Verdict.APPLIED, receipt=effects[0].result, **what)
        elif self.choose("abandon", (False,) * 7 + (True,)):
            item = GiveVerdict(verdict=Verdict.ABANDON, **what)
        else:
            taken = bool(self.providers[call.planned.tool].effects()) or self.providers[call.planned.tool].foreign
            then = "reject" if taken else self.choose("then", ("dispatch", "reject"))
            item = GiveVerdict(verdict=Verdict.NOT_APPLIED, then=then, sender_stopped=True, **what)
        self.post(f"verdict:{call.id}:{seen}", item)

    # ---- one life, as a runtime would live it

    def live(self) -> None:
        self.lives += 1
        self.fence += 1
        # A store that proves deaths proves them to all; without it every death is only an expired lease.
        self.processes.append(Process(self.fence, provable=self.choose("provable", (True, True, True, False))))
        self.steps = 0
        if not self.healing:
            self.draining = self.choose("drain", (False,) * 9 + (True,))
        before = self.run
        assert fold(self.journal) == before, "the fold differs from the fold made step by step"
        try:
            self.append(
                LifeBegan(life=self.lives, incarnation="i", pid=1, host="h", version="0", verify_first=self.restored)
            )
            while True:
                self.step()
        except LifeOver:
            process = self.processes[-1]
            if process.state == "running":
                process.state = "released" if all(f.stage == "over" for f in process.flights) else "dead"

    def step(self) -> None:
        self.steps += 1
        if self.steps > 400:
            raise Broken("a life of 400 steps does not come to rest")
        self.peril()
        self.read_mail()
        if not self.healing and self.steps % 3 == 0:
            self.others()
        process = self.processes[-1]
        flying = [f for f in process.flights if f.stage != "over" and not f.straggling]
        in_flight = plan.InFlight(attempts=frozenset((f.call, f.number) for f in flying))
        action = plan.next_action(self.run, self.view(), self.now, plan.Ownership(draining=self.draining), in_flight)
        self.check_action(action)
        match action:
            case plan.ForCall(call=call, move=move):
                self.move(action, call, move)
            case plan.AskModel(turn=turn, ask=ask):
                self.ask_model(turn, ask)
            case plan.Await(until=until):
                self.wait(flying, until)
            case plan.Pause(status=status, because=because, until=until, note=note):
                paused = Paused(status=status, because=because, until=until, note=note)
                if self.run.paused != paused:
                    self.append(paused)
                raise LifeOver
            case plan.Finish(status=status, failure=failure):
                self.finish(status, failure)
            case _:
                raise LifeOver

    def view(self) -> plan.FlowView:
        tools = {
            name: plan.ToolView(
                terms=tool.terms(self.scope),
                can_look=tool.can_look and self.flow != "changed, no lookup",
                parallel=tool.parallel,
            )
            for name, tool in self.tools.items()
        }
        if self.flow == "right":
            return plan.FlowView(tools=tools)
        if self.flow == "tool missing":
            tools.pop(next(iter(tools)))
        return plan.FlowView(tools=tools, differences=(Difference(where="version", journal="1", now="2"),))

    def read_mail(self) -> None:
        unread = [(number, item_id, decode_item(body)) for number, item_id, body in self.mail if number > self.run.mail]
        for number, item_id, item in sorted(unread, key=lambda each: not isinstance(each[2], Evidence)):
            told = isinstance(item, Evidence) and isinstance(item.fact, Receipt) and item.fact
            news = (
                told
                and (made := self.books.get(told.call, Book()).attempts.get(told.attempt))
                and made.fence == item.sender
            )
            for event in absorb(self.run, item, number, item_id, self.past_outcome):
                self.append(event)
            if (
                told
                and news
                and self.run.call(told.call)
                and not self.run.status.terminal
                and not self.books[told.call].settled
            ):
                raise Broken(f"a late reply to call {told.call} is thrown away")

    def past_outcome(self, call: str) -> Outcome | None:
        state = None
        for recorded in self.journal:
            state = apply(state, recorded)
            if (known := state.call(call)) is not None and known.outcome is not None:
                return known.outcome
        return None

    def ask_model(self, turn: int, ask: int) -> None:
        if any(isinstance(each.event, Decided) and each.event.turn == turn for each in self.journal):
            raise Broken(f"the model is asked again for the decision of turn {turn}, which is saved")
        self.append(TurnOpened(turn=turn, ask=ask))
        self.peril()
        if not self.healing and self.choose("model", ("decides", "decides", "decides", "fails")) == "fails":
            failure = Failure(kind="Overloaded", message="")
            self.append(AskFailed(turn=turn, ask=ask, failure=failure, retry_at=self.now + seconds(1)))
            return
        tools = self.turns[turn - 1] if turn <= len(self.turns) else []
        arguments = Raw(b'{"version":%d}' % self.version)
        calls = tuple(
            PlannedCall(position=i, tool=tool.name, arguments=arguments, key=f"key-{turn}-{i}")
            for i, tool in enumerate(tools, start=1)
        )
        self.append(Decided(turn=turn, text="done", calls=calls))

    def move(self, action: plan.ForCall, call: CallState, move: object) -> None:
        match move:
            case Dispatch(because=because):
                self.dispatch(action, call, because)
            case Settle(because=because):
                proof = Proof.TRANSACTION if self.kind(call.planned.tool) == "transactional" else Proof.LOOKUP
                self.append(Receipt(call=call.id, proof=proof, result=call.found, because=because))
                if because is Rule.SEVERAL:
                    self.append(IncidentRaised(call=call.id, what="several"))
            case Reject(because=because):
                self.append(Rejected(call=call.id, because=because, failure=Failure(kind="no", message="")))
            case Ask(because=because):
                self.look_up(call, because)
            case Observe():
                for fence in sorted({a.fence for a in call.open_attempts if a.proof not in ("released", "dead")}):
                    self.append(SenderObserved(sender=fence, proof=self.observe(fence)))
            case Unknown(because=because):
                if not self.abandoned and (why := self.could_have_known(call)) is not None:
                    raise Broken(f"call {call.id} is called unknown ({because}), but {why}")
                self.append(UnknownDeclared(call=call.id, because=because))
            case _:
                raise Broken(f"nobody can do {move}")

    def observe(self, fence: int) -> SenderProof:
        process = next(each for each in self.processes if each.fence == fence)
        if process.state == "released":
            return SenderProof.RELEASED
        if process.state == "dead":
            return SenderProof.DEAD if process.provable else SenderProof.EXPIRED
        return SenderProof.ALIVE if process.provable else SenderProof.EXPIRED

    def dispatch(self, action: plan.ForCall, call: CallState, because: Rule) -> None:
        tool = self.tools[call.planned.tool]
        if action.record:
            self.append(
                Dispatched(
                    call=call.id,
                    attempt=action.attempt,
                    deadline=self.now + TIMEOUT,
                    because=because,
                    terms=action.terms,
                )
            )
        elif tool.kind != "read":
            raise Broken(f"the dispatch of call {call.id} is not recorded")
        flight = Flight(call.id, action.attempt, bytes(call.planned.arguments), self.scope, self.now)
        self.processes[-1].flights.append(flight)
        self.peril()

    def look_up(self, call: CallState, because: Rule) -> None:
        tool = self.tools[call.planned.tool]
        view = self.view().tools.get(tool.name)
        if view is None or not view.can_look:
            raise Broken(f"call {call.id} is looked up by a tool that has no lookup here")
        asked_at = self.now
        self.peril()
        answer = "honest" if self.healing else self.choose("lookup", ("honest",) * 3 + ("cannot_tell", "failed"))
        found = self.providers[tool.name].look(self.scope, asked_at)
        result, matches = {}, False
        if answer == "honest":
            word = Answer.ABSENT if not found else Answer.FOUND if len(found) == 1 else Answer.SEVERAL
            if found:
                result, matches = {"result": found[0].result}, found[0].arguments == bytes(call.planned.arguments)
        else:
            word = Answer(answer)
        retry_at = None if found else self.now + seconds(self.choose("lookup backoff", (0.05, 2)))
        self.append(
            LookedUp(
                call=call.id,
                answer=word,
                asked_at=asked_at,
                because=because,
                matches=matches,
                retry_at=retry_at,
                **result,
            )
        )

    def wait(self, flying: list[Flight], until: datetime | None) -> None:
        if flying:
            self.step_flight(self.choose("whose turn", flying))
            return
        if until is None or until <= self.now:
            raise Broken(f"nothing is under way, and it waits until {until} at {self.now}")
        stragglers = [f for f in self.processes[-1].flights if f.straggling and f.stage != "over"]
        if stragglers and self.choose("straggler", (True, False)):
            self.now = min(until, self.now + seconds(1))
            self.straggle(stragglers[0])
            return
        self.now = until

    def finish(self, status: Status, failure: Failure | None) -> None:
        for call, book in self.books.items():
            if book.open and not book.settled and self.kind(self.tool_of(call)) != "read":
                raise Broken(f"the run is {status}, and call {call} is dispatched and unsettled")
        match status:
            case Status.COMPLETED:
                self.append(Completed(output=Raw(b"1")))
            case Status.CANCELLED:
                self.append(Cancelled())
            case _:
                self.append(Failed(failure=failure or Failure(kind="x", message="")))
        raise LifeOver

    # ---- attempts

    def send(self, flight: Flight) -> None:
        """The request leaves, now. It lands and shows within the provider's settle time."""
        tool = self.tools[self.tool_of(flight.call)]
        lands = self.now + seconds(self.choose("lands after", (0, 1, 3)))
        shows = lands + (seconds(0) if tool.kind == "transactional" else seconds(self.choose("shows after", (0, 1, 3))))
        request = Request(flight.call, flight.arguments, flight.scope, self.now, self.now - flight.began, lands, shows)
        flight.request = self.providers[tool.name].receive(request)
        flight.stage = "sent"

    def reply(self, flight: Flight) -> Event:
        """The provider's reply reaches the tool, and the tool says what it means."""
        request = flight.request
        assert request is not None
        self.now = max(self.now, request.lands_at)
        which = {"call": flight.call, "attempt": flight.number}
        match request.reply:
            case "done":
                proof = Proof.RESPONSE if flight.number == 1 else Proof.REPEAT
                return Receipt(proof=proof, result=request.result, **which)
            case "refused":
                return AttemptEnded(ending=Ending.NOT_APPLIED, failure=Failure(kind="refused", message=""), **which)
            case "exists":
                return AttemptEnded(ending=Ending.EXISTS, retry_at=self.now + MOMENT, **which)
            case _:
                return self.unsure(flight)

    def unsure(self, flight: Flight, *, running: bool = False) -> Event:
        if self.kind(self.tool_of(flight.call)) == "read":
            return Rejected(call=flight.call, because=Rule.READ_FAILED, failure=Failure(kind="x", message=""))
        retry_at = self.now + seconds(self.choose("backoff", (0.05, 1)))
        return AttemptEnded(
            call=flight.call, attempt=flight.number, ending=Ending.UNSURE, running=running, retry_at=retry_at
        )

    def step_flight(self, flight: Flight) -> None:
        """The attempt goes one step on; the process may die before it, after it, and before it is written down."""
        self.peril()
        if flight.stage == "entered":
            self.step_in(flight)
            return
        fate = "reply" if self.healing else self.choose("reply", ("reply", "reply", "lost", "late"))
        if fate == "late" and self.kind(self.tool_of(flight.call)) != "read":
            self.now = max(self.now, flight.began + TIMEOUT)
            self.peril()
            flight.straggling = True
            self.append(self.unsure(flight, running=True))
            return
        event = self.reply(flight) if fate == "reply" else self.unsure(flight)
        flight.stage = "over"
        self.peril()
        self.append(event)

    def step_in(self, flight: Flight) -> None:
        fates = ("sends",) * 5 + ("no connection", "bug", "not sent", "stalls")
        fate = "sends" if self.healing else self.choose("attempt", fates)
        read = self.kind(self.tool_of(flight.call)) == "read"
        which = {"call": flight.call, "attempt": flight.number}
        match fate:
            case "no connection":
                failure = Failure(kind="ConnectionRefused", message="")
                event: Event = AttemptEnded(ending=Ending.NOT_APPLIED, failure=failure, **which)
            case "bug":
                event = self.unsure(flight)
            case "not sent" if not read:
                event = AttemptEnded(ending=Ending.NOT_SENT, **which)
            case "stalls" if not read:
                self.now = max(self.now, flight.began + TIMEOUT)
                self.peril()
                flight.straggling = True
                self.append(self.unsure(flight, running=True))
                return
            case _:
                self.send(flight)
                self.peril()
                return
        if read and fate == "no connection":
            event = Rejected(call=flight.call, because=Rule.READ_FAILED, failure=Failure(kind="x", message=""))
        flight.stage = "over"
        self.peril()
        self.append(event)

    def straggle(self, flight: Flight) -> None:
        """A thread that outlived its deadline goes on: it may still send, and says how it ended."""
        if flight.stage == "entered":
            self.send(flight)
            return
        event = self.reply(flight) if self.choose("late reply", (True, False)) else self.unsure(flight)
        flight.stage = "over"
        settled = (known := self.run.call(flight.call)) is None or known.outcome is not None
        released = SenderReleased(call=flight.call, attempt=flight.number)
        for fact in (released, event):
            if settled:
                self.post_evidence(self.processes[-1], fact)
            else:
                self.append(fact)

    # ---- the journal, and what its readers know

    def append(self, event: Event, fence: int | None = None) -> None:
        recorded = Recorded(
            len(self.journal) + 1, self.now, self.fence if fence is None else fence, decode(encode(event))
        )
        assert recorded.event == event, "an event does not come back equal"
        self.journal.append(recorded)
        self.state = apply(self.state, recorded)
        self.note(recorded)

    def rebuild_books(self) -> None:
        self.books = {}
        for recorded in self.journal:
            self.note(recorded)

    def note(self, recorded: Recorded) -> None:
        event = recorded.event
        match event:
            case Decided(turn=turn, calls=calls):
                for planned in calls:
                    self.books[f"{turn}.{planned.position}"] = Book()
                return
            case LifeBegan(verify_first=lost):
                for book in self.books.values():
                    for seen in book.attempts.values():
                        seen.living_since = None
                    book.new_question()
                    book.cleared = book.cleared and not lost
                self.heard_of_loss = recorded.at if lost else self.heard_of_loss
                return
            case SenderObserved(sender=fence, proof=proof):
                for book in self.books.values():
                    for seen in book.attempts.values():
                        if seen.fence == fence and seen.ended_at is None:
                            self.note_proof(seen, proof in ("released", "dead"), recorded.at)
                return
            case _:
                book = self.books.get(getattr(event, "call", ""), Book())
        match event:
            case Dispatched(attempt=number, because=because, terms=terms):
                if because is Rule.ABSENT_PROVEN:
                    for seen in book.attempts.values():
                        seen.open = False
                book.attempts[number] = Seen(recorded.fence)
                book.first_at = book.first_at or recorded.at
                book.scope = terms.scope if terms else book.scope
                book.exists = False
                book.new_question()
            case AttemptEnded(attempt=number, ending=ending, running=running, retry_at=retry_at):
                book.not_before = retry_at
                book.exists = book.exists or ending is Ending.EXISTS
                book.refused = book.refused or ending is Ending.NOT_APPLIED
                if (known := book.attempts.get(number)) is not None:
                    known.open = known.open and ending not in (Ending.NOT_APPLIED, Ending.NOT_SENT)
                    known.ended_at = None
                    known.living_since = None
                    self.note_proof(known, not running, recorded.at)
            case SenderReleased(attempt=number) if number in book.attempts:
                self.note_proof(book.attempts[number], True, recorded.at)
            case LookedUp(answer=answer, asked_at=asked_at, retry_at=retry_at, matches=matches):
                book.asks += 1
                book.answer, book.asked_at, book.not_before, book.matches = answer, asked_at, retry_at, matches
            case Receipt() | Rejected():
                book.settled = book.settled or type(event).__name__
                if isinstance(event, Receipt):
                    self.hear(event)
            case _ if getattr(event, "verdict", None) is Verdict.NOT_APPLIED:
                for seen in book.attempts.values():
                    seen.open = False
                book.forgiven, book.cleared, book.refused = len(book.attempts), True, False
                book.new_question()
            case _ if getattr(event, "verdict", None) is Verdict.ABANDON:
                book.settled = "abandoned"
                self.abandoned.add(getattr(event, "call", ""))
            case _:
                pass

    @staticmethod
    def note_proof(seen: Seen, ended: bool, at: datetime) -> None:
        if ended:
            seen.ended_at, seen.living_since = at, None
        else:
            seen.living_since = seen.living_since or at

    # ---- the promises, checked as it goes

    def check_action(self, action: object) -> None:
        if not isinstance(action, plan.ForCall) or not isinstance(action.move, (Dispatch, Ask)):
            return
        call, because = action.call, action.move.because
        book = self.books[call.id]
        if book.settled:
            raise Broken(f"call {call.id} is settled, and it is {type(action.move).__name__} again")
        paced = because not in (
            Rule.LOOK_EARLY, Rule.VERIFIED_ABSENT, Rule.ABSENT_PROVEN, Rule.ROW_ABSENT,
        )  # fmt: skip
        if paced and book.not_before is not None and self.now < book.not_before:
            raise Broken(f"call {call.id} is tried before its time")
        if isinstance(action.move, Dispatch):
            self.check_dispatch(call, book)

    def check_dispatch(self, call: CallState, book: Book) -> None:
        tool = self.tools[call.planned.tool]
        if self.run.cancel is not None or self.draining or self.flow != "right":
            raise Broken(f"call {call.id} is dispatched, though the run is stopped")
        if tool.kind != "read" and len(book.attempts) - book.forgiven > REPEATS:
            raise Broken(f"call {call.id} is tried more often than its bounds permit")
        earlier = [c for c in self.run.calls if c.planned.position < call.planned.position and c.outcome is None]
        if earlier and not tool.parallel:
            raise Broken(f"call {call.id} overtakes {earlier[0].id}")
        others = [c for c in self.run.calls if c.unknown and not c.outcome and c.id != call.id]
        unknown = [c.id for c in others if self.could_have_known(c) is None]
        flights = [f for f in self.processes[-1].flights if f.stage != "over" and not f.straggling]
        if any(flight.call == call.id for flight in flights):
            raise Broken(f"call {call.id} is dispatched while it is under way here")
        if unknown and call.unknown is None:
            raise Broken(f"call {call.id} is dispatched beside {unknown}, which is unknown")
        if tool.kind == "keyed, lookup first" and book.open and not book.asks and not book.exists:
            raise Broken(f"call {call.id} is repeated without the look that its author wants")
        if tool.kind.startswith("repeatable") and book.open:
            flights = [f for process in self.processes for f in process.flights if process.state != "dead"]
            flights += self.orphans
            if any(f.call == call.id and f.stage == "entered" for f in flights):
                raise Broken(f"call {call.id} is repeated while an earlier sender may still write the old state")

    def could_have_known(self, call: CallState) -> str | None:
        """Say what a reader of the journal could still have done; None: nobody could have known."""
        tool, book = self.tools[call.planned.tool], self.books[call.id]
        stopped = self.run.cancel is not None or bool(self.run.abandoned)
        can_look = tool.can_look and self.flow in ("right", "changed")
        asks_left = LOOKUPS - book.asks
        if not book.open:
            if not self.restored or book.cleared:
                return "nothing of it has left"
            if book.answer in (Answer.FOUND, Answer.SEVERAL) and book.matches:
                return "it was found, and matches"
            settles = "| lookup" in f"| {tool.kind}" or tool.kind in ("transactional", "keyed, lookup first")
            enough = (Answer.FOUND, Answer.SEVERAL, *(() if settles else (Answer.ABSENT,)))
            if can_look and asks_left > 0 and book.answer not in enough:
                return "it can still be looked up"
            return None
        if book.answer in (Answer.FOUND, Answer.SEVERAL):
            return "it was found"
        if tool.kind == "read":
            return "it is a read"
        if tool.kind == "one shot" or book.scope != self.scope:
            return None
        if (why := self.repeat_is_licensed(tool, book)) is not None and not stopped and self.flow == "right":
            return why
        return self.look_may_help(tool, book, can_look=can_look, asks_left=asks_left)

    def repeat_is_licensed(self, tool: Tool, book: Book) -> str | None:
        assert book.first_at is not None
        if len(book.attempts) - book.forgiven > REPEATS:
            return None
        if tool.kind.startswith("keyed") and "unknown age" not in tool.kind:
            fresh = self.now + TIMEOUT + MARGIN < book.first_at + REMEMBERED
            return "its key is still remembered" if fresh else None
        if tool.kind.startswith("client id") and not book.exists:
            return "creating it twice would conflict"
        if tool.kind.startswith("repeatable") and not tool.children and all(seen.ended_at for seen in book.open):
            return "repeating it changes nothing, and nobody else sends"
        return None

    def look_may_help(self, tool: Tool, book: Book, *, can_look: bool, asks_left: int) -> str | None:
        absent = book.answer is Answer.ABSENT
        waits = "lookup" in tool.kind.split("| ")[-1] and "first" not in tool.kind.split("| ")[-1]
        waits = waits or tool.kind == "keyed, lookup first"
        if tool.kind.startswith("client id") and book.exists:
            return "it can still be fetched" if can_look and asks_left > 0 else None
        if tool.kind == "transactional" and not absent:
            return "its row can still be read" if can_look and asks_left > 0 else None
        if not waits and not tool.kind.startswith("repeatable") and tool.kind != "transactional":
            return "it can still be looked for" if can_look and asks_left > 0 and not absent else None
        if not can_look and not tool.kind.startswith("repeatable"):
            return None
        if not can_look and self.run.cancel is not None:
            return None
        if any(seen.ended_at is None and seen.living_since is None for seen in book.open):
            return "nobody has looked at its sender"
        if all(seen.ended_at for seen in book.open) and not tool.children:
            if not can_look:
                return None
            settled = max(self.heard_of_loss, *(seen.ended_at for seen in book.open if seen.ended_at)) + SETTLES_IN
            if absent and book.asked_at is not None and book.asked_at >= settled:
                return "its absence is proven"
            return "it can still be looked up" if asks_left > 0 else None
        living = [seen for seen in book.open if seen.ended_at is None] or book.open
        due = max(seen.living_since or seen.ended_at or START for seen in living) + PROOF_WITHIN
        if self.now < due:
            return "its sender may still be seen to end"
        if can_look and asks_left > 0 and not (absent and book.asked_at is not None and book.asked_at >= due):
            return "it can still be looked up once"
        return None

    # ---- the judge

    def judge(self) -> None:
        """Compare what the journal says with what truly happened."""
        state: RunState | None = None
        outcomes: dict[str, tuple[CallState, Outcome]] = {}
        for recorded in self.journal:
            state = apply(state, recorded)
            outcomes |= {call.id: (call, call.outcome) for call in state.calls if call.outcome is not None}
        for call, outcome in outcomes.values():
            tool = self.tools[call.planned.tool]
            if tool.kind == "read":
                continue
            effects = self.providers[tool.name].effects(bytes(call.planned.arguments))
            if outcome.kind == "applied" and not effects:
                raise Broken(f"call {call.id} ({tool.kind}) is settled as applied, and nothing happened")
            if outcome.kind == "rejected" and effects:
                raise Broken(f"call {call.id} ({tool.kind}) is rejected ({outcome.because}), and it happened")
        for name, provider in self.providers.items():
            self.judge_effects(self.tools[name], provider)
        if any(len(results) > 1 for results in self.told.values()) and not self.run.incident:
            raise Broken("two effects were reported for one intent, and no incident is raised")

    def judge_effects(self, tool: Tool, provider: Provider) -> None:
        if tool.kind.startswith("repeatable"):
            return
        for arguments in {each.arguments for each in provider.requests}:
            effects = provider.effects(arguments)
            excused = [
                each
                for each in effects
                if tool.kind.startswith("keyed") and each.forgotten and each.stalled > TIMEOUT + MARGIN
            ]
            if len(effects) - len(excused) > 1:
                when = [f"{(each.sent_at - START).total_seconds():g} s in {each.scope}" for each in effects]
                raise Broken(f"{tool.name} ({tool.kind}) had {len(effects)} effects for one intent: sent at {when}")

    def tool_of(self, call: str) -> str:
        turn, _, position = call.partition(".")
        return self.turns[int(turn) - 1][int(position) - 1].name

    def kind(self, tool: str) -> str:
        return self.tools[tool].kind
