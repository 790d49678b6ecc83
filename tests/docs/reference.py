"""What the reference pages must agree with, read off the code. `python -m tests.docs.reference` writes two of them.

docs/reference/cli.md       from the commands themselves
docs/reference/errors.md    from errors.py
"""

from __future__ import annotations

import inspect
import re
import sqlite3
from typing import Any

import typer

from counterfoil import errors
from counterfoil.cli.main import app
from counterfoil.stores import sql
from tests.docs.pages import DOCS

CLI = DOCS / "reference" / "cli.md"
ERRORS = DOCS / "reference" / "errors.md"

_EXITS = re.compile(r"^\s+(\d+)  (\S.*?)\s*$", re.MULTILINE)


def commands() -> dict[str, Any]:
    """Every command, in the order of the first help page."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def options(command: Any) -> dict[str, tuple[str, str]]:
    """What may be typed behind a command: name, with its help and its default."""
    found = {}
    for parameter in command.params:
        name, metavar = ", ".join(parameter.opts), parameter.metavar or ""
        if not name.startswith("-"):
            name = metavar or name.upper()
        elif metavar:
            name = f"{name} {metavar}"
        default = parameter.default if isinstance(parameter.default, str | int | float) else None
        shown = "" if default in (None, False, "") else str(default)
        found[name] = (parameter.help or "", "required" if parameter.required else shown)
    return found


def exits(command: Any) -> dict[str, str]:
    """A command's exit codes, with their meanings."""
    said = (command.help or "").partition("Exit codes:")[2]
    return dict(_EXITS.findall(said))


def cli_page() -> str:
    """Return the text of the page about the command line."""
    parts = [_CLI_HEAD]
    for name, command in commands().items():
        before = (command.help or "").partition("\b\nExample:")
        purpose = [part.strip() for part in before[0].replace("\b", "").split("\n\n") if part.strip()]
        example = before[2].split("\n\n")[0].strip("\n")
        parts.append(f"## {name}\n\n" + "\n\n".join(purpose) + "\n")
        parts.append("```sh\n" + inspect.cleandoc("\n" + example) + "\n```\n")
        rows = [
            f"| `{_cell(word)}` | {_cell(says)} | {_cell(default)} |"
            for word, (says, default) in options(command).items()
        ]
        parts.append("| argument or option | | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
        codes = [
            f"| {code} | {_cell(meaning)} |"
            for code, meaning in sorted(exits(command).items(), key=lambda at: int(at[0]))
        ]
        parts.append("| exit code | |\n|---|---|\n" + "\n".join(codes) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def error_classes() -> list[type[errors.CounterfoilError]]:
    """The errors of counterfoil, each behind its base."""
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.CounterfoilError)
    ]
    return sorted(found, key=lambda one: [each.__name__ for each in reversed(one.__mro__)])


def error_rows() -> list[list[str]]:
    """One row for each: name, code, exit code, what it says, remedy."""
    return [
        [f"`{one.__name__}`", f"`{one.code}`", str(one.exit_code), _first(one), one.remedy]
        for one in error_classes()
        if one is not errors.CounterfoilError
    ]


def _first(one: type) -> str:
    return inspect.cleandoc(one.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def errors_page() -> str:
    """Return the text of the page about errors."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    drawn = "\n".join(part for part in tree if "├" in part)
    rows = "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in error_rows())
    table = "| error | code | exit code | means | remedy |\n|---|---|---|---|---|\n"
    raised = [errors.ModelError, errors.NotApplied, errors.AlreadyExists, errors.DispatchRefused]
    yours = "\n".join(f"| `{one.__name__}` | {_cell(_first(one))} |" for one in raised)
    return _ERRORS_HEAD.format(tree=inspect.cleandoc(drawn)) + table + rows + _ERRORS_TAIL.format(rows=yours)


def tables() -> dict[str, list[str]]:
    """Every table of the SQLite store, with its columns."""
    made = sqlite3.connect(":memory:")
    for script in sql.migrations("sqlite").values():
        made.executescript(script)
    names = [name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [row[1] for row in made.execute(f"PRAGMA table_info({name})")] for name in names}


_CLI_HEAD = """# The command line

<!-- Written by `python -m tests.docs.reference`; change the commands' help, not this page. -->

`counterfoil COMMAND --help` says the same. Where a command works on a store, it is the one named by `--store`, else by
the environment variable `COUNTERFOIL_STORE`, else `./counterfoil.db`. A place is a path, `sqlite:///relative.db` or
`sqlite:////absolute.db`. A command that only reads never makes a store.

Times are written `30d`, `12h`, `45m`, `90s` or `250ms`. Results go to stdout, everything said in passing to stderr.
With `--json` stdout holds one JSON document and nothing else; its keys stand in the command's help. `--debug`, or
`COUNTERFOIL_DEBUG=1`, shows a traceback where a bug is met. `NO_COLOR` is honoured.

| exit codes of `run` and `resume` | |
|---|---|
| 0 | completed |
| 1 | failed |
| 2 | usage, no such run, or other input for a known id |
| 3 | unknown: a person must settle a call |
| 4 | waiting |
| 5 | blocked |
| 6 | cancelled |
| 65 | journal damaged or newer |
| 74 | store unavailable |
| 75 | owned by another worker |
| 130 | interrupted, drained, resumable |
"""

_ERRORS_HEAD = """# Errors

<!-- Written by `python -m tests.docs.reference`; change errors.py, not this page. -->

Errors say that something could not be done as asked. Outcomes that a program must handle (*unknown*, *waiting*,
*blocked*) are values, not errors: they stand in `RunResult.status` and `Guarded.status`. The classes are in
`counterfoil.errors`.

```text
{tree}
```

Each error has a stable `code`, the `exit_code` of the command line, a `message` with the facts, and a `remedy`: the
next step, in one sentence. The command line prints message and remedy and nothing else.

"""

_ERRORS_TAIL = """

## Raised by you, or into your tool

These are no subclasses of `CounterfoilError`.

| error | |
|---|---|
{rows}
"""


if __name__ == "__main__":
    CLI.write_text(cli_page(), encoding="utf-8")
    ERRORS.write_text(errors_page(), encoding="utf-8")
