"""The house rules, run over the tree, and each over a bad example: a rule that cannot fail proves nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tidy import house

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "counterfoil"

# Functions that are better long, and why. An entry that is no longer needed fails.
LONG_FUNCTIONS: dict[str, str] = {}

# Tests that may sleep, and why. An entry that is no longer needed fails.
SLEEPING_TESTS: dict[str, str] = {"tests/waiting.py": "the one place that waits by looking again, with a deadline"}


def tracked() -> list[Path]:
    """What git would commit: a file is judged before it is added, too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def modules(under: Path) -> list[Path]:
    return sorted(path for path in under.rglob("*.py") if "__pycache__" not in path.parts)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def complaints(paths: Iterable[Path], rule: Callable[[str], Iterator[str]]) -> list[str]:
    return [f"{name(path)}: {found}" for path in paths for found in rule(path.read_text(encoding="utf-8"))]


def test_core_asks_no_clock_no_dice_and_no_file() -> None:
    assert modules(PACKAGE / "core"), "core has moved; this rule guards nothing"
    assert complaints(modules(PACKAGE / "core"), house.impure_calls) == []


def test_nobody_catches_everything() -> None:
    assert complaints([*modules(ROOT / "src"), *modules(ROOT / "tests")], house.bare_excepts) == []


def test_modules_are_named_for_what_they_hold() -> None:
    named = [*modules(PACKAGE), *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    assert [name(path) for path in named if house.vague_name(path.name)] == []


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{name(path)}:{function}": lines
        for path in modules(PACKAGE)
        for function, lines in house.long_functions(path.read_text(encoding="utf-8"))
    }
    assert {place: lines for place, lines in long.items() if place not in LONG_FUNCTIONS} == {}
    assert sorted(LONG_FUNCTIONS.keys() - long.keys()) == [], "no longer long: take it off the list"


def test_the_package_is_not_imported_through_its_top_from_inside() -> None:
    parts = frozenset(path.stem for path in PACKAGE.iterdir())
    inside = [
        path for path in modules(PACKAGE) if path.relative_to(PACKAGE).parts[0] not in {"cli", "testing", "console"}
    ]
    assert complaints(inside, lambda source: house.root_imports(source, parts)) == []


def test_tests_do_not_sleep() -> None:
    found = {name(path): list(house.sleeps(path.read_text(encoding="utf-8"))) for path in modules(ROOT / "tests")}
    sleeping = {path: where for path, where in found.items() if where}
    assert {path: where for path, where in sleeping.items() if path not in SLEEPING_TESTS} == {}
    assert sorted(SLEEPING_TESTS.keys() - sleeping.keys()) == [], "sleeps no longer: take it off the list"


def test_every_switched_off_check_says_why() -> None:
    assert complaints([*modules(ROOT / "src"), *modules(ROOT / "tests")], house.unreasoned_suppressions) == []


def test_no_file_names_a_machine_a_registry_or_a_secret() -> None:
    files = tracked()
    assert ROOT / "pyproject.toml" in files
    found = [
        f"{name(path)}: {complaint}"
        for path in files
        if b"\0" not in (content := path.read_bytes())[:8192]
        for complaint in house.foreign_places(content.decode("utf-8", errors="replace"))
    ]
    assert found == []


def test_nothing_promises_exactly_once() -> None:
    prose = [path for path in tracked() if path.suffix == ".md" or (path.suffix == ".py" and PACKAGE in path.parents)]
    assert complaints([*prose, ROOT / "pyproject.toml"], house.false_promises) == []


# Bad and good for each rule. Places that must not stand in this file are put together from two halves.
BAD: list[tuple[Callable[[str], Any], str]] = [
    (house.impure_calls, "from datetime import datetime, UTC\nat = datetime.now(UTC)"),
    (house.impure_calls, "import datetime\nat = datetime.datetime.now()"),
    (house.impure_calls, "import time\nat = time.time()"),
    (house.impure_calls, "import random\nn = random.randint(1, 6)"),
    (house.impure_calls, "from uuid import uuid4\nkey = uuid4()"),
    (house.impure_calls, "import uuid\nkey = uuid.uuid4()"),
    (house.impure_calls, "text = open('f').read()"),
    (house.impure_calls, "import os\nhome = os.environ['HOME']"),
    (house.bare_excepts, "try:\n    x = 1\nexcept:\n    pass"),
    (house.long_functions, "class A:\n    def f(self):\n" + "        x = 1\n" * house.MAX_FUNCTION_LINES),
    (house.sleeps, "import time\ntime.sleep(1)"),
    (house.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)"),
    (house.sleeps, "from time import sleep\nsleep(seconds)"),
    (house.unreasoned_suppressions, "import os  # no" + "qa: F401"),
    (house.unreasoned_suppressions, "import os  # no" + "qa"),
    (house.unreasoned_suppressions, "x = f()  # type: " + "ignore[arg-type]"),
    (house.foreign_places, "cd /wo" + "rk/main"),
    (house.foreign_places, "open('/roo" + "t/.netrc')"),
    (house.foreign_places, "index-url = https://py" + "pi.org/simple"),
    (house.foreign_places, "https://files.python" + "hosted.org/x"),
    (house.foreign_places, "key = sk-" + "a1B2" * 8),
    (house.false_promises, "# A title\n\nEvery effect happens exactly\nonce."),
    (house.false_promises, "It never stops. Delivery is exactly-once."),
]

GOOD: list[tuple[Callable[[str], Any], str]] = [
    (house.impure_calls, "def due(now, wait):\n    return now + wait"),
    (house.bare_excepts, "try:\n    x = 1\nexcept ValueError:\n    pass"),
    (house.long_functions, 'def f():\n    """' + "Doc.\n" * 90 + '    """\n    return 1'),
    (house.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    clock.sleep(9)"),
    (house.unreasoned_suppressions, "import os  # no" + "qa: F401 - a plugin looks for it"),
    (house.foreign_places, "src/network/main, $HOME/.cache and /tmp/x"),
    (house.false_promises, "Exactly once cannot be promised; at most once, and you are told, can."),
]


@pytest.mark.parametrize("rule,source", BAD)
def test_each_rule_can_fail(rule: Callable[[str], Any], source: str) -> None:
    assert list(rule(source))


@pytest.mark.parametrize("rule,source", GOOD)
def test_no_rule_cries_wolf(rule: Callable[[str], Any], source: str) -> None:
    assert list(rule(source)) == []


def test_a_vague_name_and_an_import_through_the_top_are_noticed() -> None:
    parts = frozenset({"core", "errors"})
    assert house.vague_name("utils.py")
    assert house.vague_name("_common.py")
    assert not house.vague_name("keys.py")
    assert list(house.root_imports("from counterfoil import Agent", parts))
    assert list(house.root_imports("import counterfoil as cf", parts))
    assert not list(house.root_imports("from counterfoil import errors\nfrom counterfoil.core import keys", parts))
