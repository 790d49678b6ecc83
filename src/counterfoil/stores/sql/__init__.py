"""Named SQL statements and migrations, read from the files beside this one.

It must not know what a statement means, and it never runs one.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name."""
    text = (files(__name__) / f"{dialect}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    named = zip(parts[1::2], parts[2::2], strict=True)
    return MappingProxyType({name: " ".join(_code(body).split()).rstrip(";") for name, body in named})


def migrations(dialect: str) -> dict[int, str]:
    """Return a dialect's migrations by number, lowest first."""
    folder = files(__name__) / "migrations" / dialect
    found = {
        int(match[1]): path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if (match := _MIGRATION.match(path.name))
    }
    return dict(sorted(found.items()))


def split(script: str) -> Iterator[str]:
    """Cut a script into its statements, so that all of them can run inside one transaction."""
    statement = ""
    for line in _code(script).splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if statement.strip():
        raise ValueError(f"a migration ends in the middle of a statement: {statement.strip()[:60]}")


def _code(text: str) -> str:
    """Take comment lines off; a statement has no comment behind its text."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("--"))
