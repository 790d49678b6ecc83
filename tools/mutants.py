"""Change core/ line by line and see that a test notices: `make mutants`.

A mutator of our own, because it plants a change in a forked process that has the tests loaded already: a killed mutant
costs milliseconds, where mutmut and cosmic-ray start a test session for each (some seconds, times 500). It knows few
changes, and the ones that matter in a table of decisions: a comparison one off, a condition dropped, a rule swapped,
a row taken out.

Survivors are compared with tests/core/mutants-survivors.toml; one that does not stand there with a reason fails.
"""

from __future__ import annotations

import ast
import copy
import importlib
import itertools
import multiprocessing
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from counterfoil.core import evidence, plan, recovery  # noqa: E402 - the tests are found from the root
from tests.core import test_evidence, test_plan, test_recovery  # noqa: E402 - as above
from tests.core.space import CONTRACTS, cases  # noqa: E402 - as above
from tests.property.world import KINDS, World  # noqa: E402 - as above

MODULES: tuple[ModuleType, ...] = (recovery, plan, evidence)
SURVIVORS = ROOT / "tests" / "core" / "mutants-survivors.toml"
SECONDS = 90
"""One mutant may take so long; one that hangs is noticed."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield wrong versions of one node."""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPS:
            wrong = copy.deepcopy(node)
            wrong.ops[0] = SWAPS[type(op)]()  # type: ignore[call-overload]  # one operator for another
            yield wrong
        case ast.BoolOp(op=op):
            wrong_bool = copy.deepcopy(node)
            wrong_bool.op = SWAPS[type(op)]()  # type: ignore[assignment]  # one operator for another
            yield wrong_bool
            for i in range(len(node.values)):
                fewer = copy.deepcopy(node)
                del fewer.values[i]
                yield fewer if len(fewer.values) > 1 else fewer.values[0]
        case ast.BinOp(op=op) if type(op) in SWAPS:
            wrong_bin = copy.deepcopy(node)
            wrong_bin.op = SWAPS[type(op)]()  # type: ignore[assignment]  # one operator for another
            yield wrong_bin
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value=value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(id=NAMES[name], ctx=node.ctx)
        case ast.Attribute(value=ast.Name(id="Rule"), attr=name):
            yield ast.Attribute(value=node.value, attr="FOUND" if name != "FOUND" else "SEVERAL", ctx=node.ctx)
        case ast.If():
            yield ast.Pass()
            always = copy.deepcopy(node)
            always.test = ast.Constant(value=True)
            yield always
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.match_case(guard=guard) if guard is not None:
            unguarded = copy.deepcopy(node)
            unguarded.guard = None
            yield unguarded
        case _:
            return


class Plant(ast.NodeTransformer):
    """Puts the n-th change of a tree in its place, and remembers where that was."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.was = self.now = self.where = ""
        self.function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remember which function this is in."""
        outer, self.function = self.function, node.name
        node.body = [self.visit(each) for each in node.body]
        self.function = outer
        return node

    def visit(self, node: ast.AST) -> Any:
        """Change this node, if it is the one."""
        if self.function and not self.now:
            for wrong in changes(node):
                if self.left == 0:
                    self.was, self.now, self.where = _line(node), _line(wrong), self.function
                    self.left -= 1
                    return ast.copy_location(wrong, node)
                self.left -= 1
        return super().visit(node)


def _line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:160]


def mutants(module: ModuleType) -> Iterator[tuple[str, ast.Module]]:
    """Yield every mutant of a module with its name."""
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    for number in itertools.count():
        tree, plant = ast.parse(source), Plant(number)
        plant.visit(tree)
        if not plant.now:
            return
        name = f"{module.__name__.rpartition('.')[2]}.{plant.where}: {plant.was} -> {plant.now}"
        yield name, ast.fix_missing_locations(tree)


def install(module: ModuleType, tree: ast.Module) -> None:
    """Put the mutant's code in place, for good: this process is a fork."""
    wrong: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(tree, module.__file__ or "", "exec"), wrong)  # noqa: S102 - our own source, changed
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            value.__code__ = wrong[name].__code__
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for part, member in vars(value).items():
                if (
                    isinstance(member, FunctionType)
                    and member.__module__ == module.__name__
                    and not part.startswith("__")
                ):
                    member.__code__ = vars(wrong[name])[part].__code__
                elif isinstance(member, property) and isinstance(member.fget, FunctionType):
                    member.fget.__code__ = vars(wrong[name])[part].fget.__code__


def trial() -> None:
    """Run the tests that must notice, the quick ones first; raise where one does."""
    for line in test_recovery.LINES:
        test_recovery.test_the_tables_of_the_design(line)
    for _, story, more, wanted in test_plan.ROWS:
        test_plan.test_next(story, more, wanted)
    for tests, name in [(each, name) for each in (test_plan, test_evidence) for name in dir(each)]:
        if name.startswith("test_") and name != "test_next":
            getattr(tests, name)()
    for contract in CONTRACTS:
        for case in itertools.islice(cases(contract), 0, None, 17):
            assert not test_recovery.differs(case)
    for kind, restores in itertools.product(KINDS, (False, True)):
        for seed in range(40):
            dice = random.Random(seed)  # noqa: S311 - dice of a test, not secrets
            World(lambda _, options, dice=dice: dice.choice(options), kind=kind, restores=restores).play()
    for contract in CONTRACTS:
        test_recovery.check(contract)


def survives(job: tuple[str, str, ast.Module]) -> tuple[str, bool]:
    """Say whether a mutant gets through."""
    name, module, tree = job
    signal.alarm(SECONDS)
    try:
        install(importlib.import_module(module), tree)
        trial()
    except BaseException:  # noqa: BLE001 - whatever it is, it was noticed
        return name, False
    finally:
        signal.alarm(0)
    return name, True


def _too_long(*_: object) -> None:
    raise TimeoutError


def main() -> int:
    """Try every mutant; return 1 where one survives that has no reason to."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _too_long)
    trial()
    jobs = [(name, module.__name__, tree) for module in MODULES for name, tree in mutants(module)]
    excused = {entry["mutant"] for entry in tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", [])}
    survivors: set[str] = set()
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for done, (name, alive) in enumerate(pool.imap_unordered(survives, jobs), start=1):
            if alive:
                survivors.add(name)
                sys.stdout.write(f"{'excused ' if name in excused else 'SURVIVED'} {name}\n")
            if done % 100 == 0:
                sys.stdout.write(f"{done} of {len(jobs)}\n")
            sys.stdout.flush()
    stale = excused - survivors
    for name in sorted(stale):
        sys.stdout.write(f"no longer survives, take it off the list: {name}\n")
    killed, seconds = len(jobs) - len(survivors), time.monotonic() - began
    sys.stdout.write(f"{len(jobs)} mutants, {killed} killed, {len(survivors)} survived, {seconds:.0f} s\n")
    return 1 if survivors - excused or stale else 0


if __name__ == "__main__":
    sys.exit(main())
