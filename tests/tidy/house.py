"""The house rules as functions: text in, complaints out. Nothing here reads a file.

`test_house.py` runs them over the tree, and first over a bad example each, so that no rule can fall asleep.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

MAX_FUNCTION_LINES = 70

# A method that asks the machine what time it is, or for entropy, whatever it is called on.
IMPURE_METHODS = {
    "now",
    "utcnow",
    "today",
    "urandom",
    "getenv",
    "uuid1",
    "uuid4",
    "monotonic",
    "perf_counter",
}
IMPURE_NAMES = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"} | IMPURE_METHODS
IMPURE_MODULES = {
    "time",
    "random",
    "secrets",
    "os",
    "logging",
    "socket",
    "subprocess",
    "threading",
    "asyncio",
}

# Say whose room it is, not that it has shelves.
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "types", "manager", "managers", "misc", "base"}

MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:work|farm|root|home/[a-z]\w*|Users/[A-Za-z]\w*|opt/pypi|opt/wheels)\b")
REGISTRY_HOST = re.compile(
    r"files\.pythonhosted\.org|(?<![\w.])(?:test\.)?pypi\.org|registry\.npmjs\.org|deb\.debian\.org|proxy\.golang\.org"
)
SECRET = re.compile(
    r"\bsk-[\w-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{30,}|\b[rs]k_live_\w{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)

PROMISE_WE_DO_NOT_MAKE = re.compile(r"exactly[\s-]once", re.IGNORECASE)
NEGATED = re.compile(r"\b(?:not|never|no|nobody|none|nothing|cannot|without)\b|n't\b", re.IGNORECASE)

SUPPRESSION = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w, -]+\])?|pragma:\s*no\s+\w+)"
    r"(?P<reason>.*)"
)


def impure_calls(source: str) -> Iterator[str]:
    """Core may use the type `datetime`, but it never looks at a clock, dice, a file or the environment."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_NAMES:
                yield f"{node.lineno}: calls {name}()"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                where = owner.id if isinstance(owner, ast.Name) else ""
                if name in IMPURE_METHODS or where in IMPURE_MODULES:
                    yield f"{node.lineno}: calls {where or '...'}.{name}()"
            case ast.Attribute(value=ast.Name(id="os"), attr="environ"):
                yield f"{node.lineno}: reads os.environ"
            case _:
                pass


def bare_excepts(source: str) -> Iterator[str]:
    """A bare `except` swallows the cancellation that stops a worker."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{node.lineno}: bare except"


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Qualified name and length of each function over the limit; the docstring does not count."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                length = _lines(child) - (_lines(child.body[0]) if ast.get_docstring(child) is not None else 0)
                if length > MAX_FUNCTION_LINES:
                    yield f"{prefix}{child.name}", length
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    return visit(ast.parse(source), "")


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def vague_name(module: str) -> bool:
    """Whether a file or package is named for its shelf and not for what is on it."""
    return module.removesuffix(".py").strip("_") in VAGUE_NAMES


def root_imports(source: str, parts: frozenset[str]) -> Iterator[str]:
    """The layers contract cannot see an import through the top of the package, so nobody inside uses it.

    Args:
        source: the module's text.
        parts: what lies directly under the top: `core`, `errors`, ...
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="counterfoil", names=names):
                for name in names:
                    if name.name not in parts:
                        yield f"{node.lineno}: imports {name.name} from the top of the package"
            case ast.Import(names=names) if any(name.name == "counterfoil" for name in names):
                yield f"{node.lineno}: imports the top of the package"
            case _:
                pass


def sleeps(source: str) -> Iterator[str]:
    """A sleep is slow when the test passes and too short on a slower machine. `sleep(0)` only yields."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep"), args=[ast.Constant(value=0)]):
                continue
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio" | "anyio"), attr="sleep")):
                yield f"{node.lineno}: sleeps"
            case ast.Call(func=ast.Name(id="sleep")):
                yield f"{node.lineno}: sleeps"
            case _:
                pass


def unreasoned_suppressions(source: str) -> Iterator[str]:
    """Whoever switches a check off says why, on the same line: `# noqa: S603 - the arguments are our own`."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := SUPPRESSION.search(token.string)):
            reason = found["reason"].strip(" -#:;,.")
            if len(reason.split()) < 2:  # One word is no reason.
                yield f"{token.start[0]}: {found[0].strip()!r} without a reason"


def foreign_places(text: str) -> Iterator[str]:
    """Paths of one machine, hosts of a package registry and secrets have no place in a committed file."""
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in (
            ("machine path", MACHINE_PATH),
            ("registry host", REGISTRY_HOST),
            ("secret", SECRET),
        ):
            if found := pattern.search(line):
                yield f"{number}: {what}: {found[0]}"


def false_promises(text: str) -> Iterator[str]:
    """Say "exactly once" only to deny it: with neither key nor lookup nobody can promise it."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?|])\s+|\n(?=\s*[-*|#])", paragraph):
            if PROMISE_WE_DO_NOT_MAKE.search(sentence) and not NEGATED.search(sentence):
                yield f'promises "exactly once": {" ".join(sentence.split())[:160]}'
