"""What the tests of the command line share: the command in a process of its own, a store of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
FLOWS = Path(__file__).with_name("flows.py")


class Ran:
    """A command that ran to its end."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class Forks:
    """The process that commands are forked from."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "tests.cli.forks"]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()


class Cli:
    """Runs commands in a folder of their own."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        self._forks = forks
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("COUNTERFOIL_", "FORCE_"))}
        self.env = plain | {"COUNTERFOIL_STORE": str(self.store), "COLUMNS": "100", "NO_COLOR": "1"}

    def __call__(self, *words: str, **env: str) -> Ran:
        out, err = self.folder / "stdout.txt", self.folder / "stderr.txt"
        order = {"words": words, "cwd": str(self.folder), "env": self.env | env, "out": str(out), "err": str(err)}
        code = self._forks.run(order)
        return Ran(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "counterfoil.cli", *words],
            cwd=self.folder,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, flow: str, run_id: str = "r1", *words: str, **env: str) -> Ran:
        return self("run", f"{FLOWS}:{flow}", "--run-id", run_id, "--input", "hello", *words, **env)

    def sql(self, statement: str, *values: object) -> list[Any]:
        """Touch the file behind the store's back."""
        connection = sqlite3.connect(self.store)
        try:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def journal(self) -> list[Any]:
        """Everything that is a journal: heads and events."""
        return [self.sql("select * from runs order by run_no"), self.sql("select * from events order by 1, 2")]
