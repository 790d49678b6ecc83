"""`counterfoil provider`: the reference provider as a process of its own, for trying things out.

It must not be used for anything real: it is the outside world of tests, and it can be told to misbehave.
"""

from __future__ import annotations

from typing import Annotated

import typer

from counterfoil.cli.options import describe


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(
        "provider",
        help=describe(
            "Serve the reference provider, which counts effects and requests and misbehaves as it is told.",
            "It serves on the loopback address until SIGTERM or Ctrl-C, prints its address once it takes requests, "
            "and keeps its ledger in a file that outlives it. POST /NAME makes one effect for each Idempotency-Key; "
            "GET /NAME?reference=K finds what was made with K in the header X-Reference, else as its key.",
            example="counterfoil provider --port 8025 --ledger ledger.db\n"
            'curl -X PUT localhost:8025/_behaviour/tickets -d \'{"fault": "drop_response", "times": 1}\'',
            exits={0: "stopped", 2: "usage", 74: "the port is taken, or the ledger cannot be written"},
        ),
    )(provider)


def provider(
    ledger: Annotated[str, typer.Option("--ledger", metavar="FILE", help="Its book; made if it is not there.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
) -> int:
    """Serve the reference provider."""
    from counterfoil.cli.messages import error
    from counterfoil.testing.provider import PORT_TAKEN, serve

    try:
        serve(port, ledger, lambda taken: print(f"http://127.0.0.1:{taken}", flush=True))
    except OSError as problem:
        error(f"the provider cannot serve on port {port}: {problem}", "Name a free port, or 0.")
        return PORT_TAKEN
    return 0
