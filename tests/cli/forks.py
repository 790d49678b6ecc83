"""Runs commands in forks of one process that has imported all that commands import: each is a process of its own.

A start of Python and the imports cost a third of a second, and there are hundreds of commands in these tests.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

PAGES = ("demo", "load", "progress", "show_page", "explain_page", "inbox_page", "doctor_page", "main")
PRELOADED = (
    *(f"counterfoil.cli.{page}" for page in PAGES),
    *(f"counterfoil.runtime.{name}" for name in ("desk", "explain", "inbox", "diagnosis", "guard")),
    *("counterfoil.testing.provider", "pydantic", "rich.console", "rich.table", "tenacity"),
)


def serve() -> None:
    """Take one order per line: words, cwd, env, and files for stdout and stderr. Answer with the exit code."""
    for module in PRELOADED:
        __import__(module)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _play(order)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _play(order: dict[str, object]) -> None:
    code = 99
    try:
        os.chdir(str(order["cwd"]))
        os.environ.clear()
        os.environ.update(order["env"])  # type: ignore[call-overload]  # it is a dict of texts
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["counterfoil", *order["words"]]  # type: ignore[misc]  # it is a list of texts
        from counterfoil.cli.main import main

        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except BaseException:  # noqa: BLE001 - whatever it was, the parent is to see it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
