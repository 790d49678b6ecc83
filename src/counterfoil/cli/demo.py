"""`counterfoil demo`: kill an agent after its effect, resume it twice, count the effects in the provider's ledger.

Everything in it is real: a provider in a process of its own, agents in processes of their own, SIGKILL, and the
commands that anyone would type. It must not call a story told that did not end as told.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import describe

if TYPE_CHECKING:
    from counterfoil.testing.provider import ProviderProcess

FLOW = "counterfoil.cli.demo_flow"
KILLED = -9
CHILD_S = 60.0
"""Seconds after which a child that hangs is given up."""


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(
        "demo",
        help=describe(
            "The whole story in ten seconds: kill an agent after its effect, resume it, count the effects.",
            "It needs no network: it starts a provider of its own, in a process of its own, with a ledger of its own.",
            example="counterfoil demo",
            exits={0: "every story ended as told", 1: "one did not, and it says which"},
        ),
    )(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with store, ledger and log of asks.")] = False,
) -> int:
    """Tell the whole story."""
    from counterfoil.testing.provider import ProviderProcess

    folder = Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    try:
        with ProviderProcess(folder / "ledger.db") as provider:
            stage = Stage(folder, provider)
            stage.title()
            first_story(stage)
            second_story(stage)
            return stage.curtain()
    finally:
        if keep:
            print(f"kept in {folder}: COUNTERFOIL_STORE={folder / 'store.db'} counterfoil show ticket-77")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Child:
    """A command that ran: what it printed, and its exit code."""

    def __init__(self, lines: list[str], code: int) -> None:
        self.lines = lines
        self.code = code

    def says(self, *words: str) -> bool:
        """Whether one line holds all these words."""
        return any(all(word in line for word in words) for line in self.lines)


class Stage:
    """Where the story plays: it runs commands, shows what they say, and keeps what did not go as told."""

    def __init__(self, folder: Path, provider: ProviderProcess) -> None:
        from counterfoil.cli.demo_flow import ASKS, PROVIDER
        from counterfoil.cli.render import console

        self.folder = folder
        self.provider = provider
        self.ledger = provider.ledger
        self.out = console()
        self.failures: list[str] = []
        self._counted = (0, 0)
        self.asks = folder / "asks.jsonl"
        self._env = os.environ | {
            PROVIDER: provider.url,
            ASKS: str(self.asks),
            "COUNTERFOIL_STORE": str(folder / "store.db"),
            "COLUMNS": str(max(40, self.out.width - 4)),
            "PYTHONUNBUFFERED": "1",
        }
        if self.out.is_terminal and not os.environ.get("NO_COLOR"):
            self._env["FORCE_COLOR"] = "1"

    def say(self, text: str = "", style: str = "none") -> None:
        """Print a line of the story."""
        from rich.text import Text

        self.out.print(Text(text, style=style))

    def title(self) -> None:
        """Say who plays."""
        self.say("Kill an agent after its effect. Resume it. Count the effects.", "bold")
        self.say(
            f"The provider is a real process (pid {self.provider.pid}) with a ledger of its own; so is every "
            "life of the agent. The model decides: create_ticket, then send_email, then nothing more.",
            "dim",
        )

    def command(self, label: str, *words: str, die: str = "") -> Child:
        """Run a counterfoil command in a child process and show what it says."""
        from rich.text import Text

        from counterfoil.cli.demo_flow import DIE

        self.say()
        shown = Text(f"  {label:<7}", style="bold").append(f"$ {shlex.join(('counterfoil', *words))}", style="cyan")
        self.out.print(shown, soft_wrap=True)
        progress = ("--progress",) if words[0] in ("run", "resume") else ()
        argv = [sys.executable, "-P", "-m", "counterfoil.cli", *words, *progress]
        process = subprocess.Popen(  # noqa: S603 - our own command line
            argv, env=self._env | {DIE: die}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines = []
        with process, _deadline(process):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                self.out.print(Text("  ").append_text(Text.from_ansi(lines[-1])), soft_wrap=True)
        return Child([Text.from_ansi(line).plain for line in lines], process.returncode)

    def ended(self, child: Child, code: int, said: str) -> None:
        """Show how a child ended, and keep it if that is not how it was to end."""
        if child.code == KILLED:
            self.say(f"    ✗ killed     {said}", "bold red")
        self.say(f"    exit code {child.code}", "dim")
        self.expect(child.code == code, f"a child was to end with {code} and ended with {child.code} ({said})")

    def expect(self, true: bool, told: str) -> None:
        """Keep what did not go as told."""
        if not true:
            self.failures.append(told)
            self.say(f"    not as told: {told}", "bold red")

    def asked(self) -> int:
        """Return how often the model was asked, counted outside of the agents."""
        return len(self.asks.read_text(encoding="utf-8").splitlines()) if self.asks.exists() else 0

    def show_ledger(self, *, effects: int) -> None:
        """Print the provider's own book: effects and requests under each key, and check the effects."""
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for column in ("    ledger", "key", "effects", "requests"):
            table.add_column(column, no_wrap=True)
        after_effect, after_request = self._counted
        self._counted = self.ledger.newest()
        made = [(effect.endpoint, effect.key or "none") for effect in self.ledger.effects(after=after_effect)]
        asked = [(one.endpoint, one.reference or "none") for one in self.ledger.requests(after=after_request)]
        for endpoint, key in dict.fromkeys(made):
            count = made.count((endpoint, key))
            table.add_row(f"    {endpoint}", key, str(count), str(asked.count((endpoint, key))))
        self.say()
        self.say("    the provider's ledger, counted outside of the agent:")
        self.out.print(table)
        self.expect(len(made) == effects, f"the ledger was to hold {effects} effects and holds {len(made)}")
        twice = [key for key in dict.fromkeys(made) if key[1] != "none" and made.count(key) > 1]
        self.expect(not twice, f"more than one effect under one key: {twice}")

    def curtain(self) -> int:
        """Say what this does not prove, and whether all went as told."""
        self.say()
        self.say("What this does not prove", "bold")
        self.say("  That your provider keeps its word: how long it knows a key, what its lookup finds.")
        self.say("  That your own flow is safe at every moment: `counterfoil crashtest` kills it there.")
        self.say()
        if self.failures:
            self.say(f"Not every story ended as told: {len(self.failures)} did not.", "bold red")
            for failure in self.failures:
                self.say(f"  {failure}", "red")
            return 1
        self.say("Every story ended as told.", "bold green")
        return 0


@contextmanager
def _deadline(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a child that hangs, so that the demo ends and says so."""
    import threading

    timer = threading.Timer(CHILD_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def first_story(stage: Stage) -> None:
    """The provider offers a key and a lookup: the ticket is found, not filed twice."""
    from counterfoil.cli.demo_flow import AFTER_TICKET, BEFORE_TURN_3

    stage.say()
    stage.say("1  The provider knows a key, and can look a ticket up by it", "bold")
    start = ("run", f"{FLOW}:support", "--run-id", "ticket-77", "--input", "Login fails")
    child = stage.command("life 1", *start, die=AFTER_TICKET)
    stage.ended(child, KILLED, "the provider has the ticket, and the journal no receipt")
    stage.expect(
        len(stage.ledger.effects(endpoint="tickets")) == 1, "the ticket was to be there when its sender was killed"
    )
    stage.expect(not child.says("effect applied"), "the first life was to be killed before it had the receipt")

    child = stage.command("life 2", "resume", "ticket-77", die=BEFORE_TURN_3)
    stage.expect(child.says("receipt found", "create_ticket"), "the second life was to find the ticket's receipt")
    stage.expect(child.says("effect applied", "send_email"), "the second life was to send the email")
    stage.ended(child, KILLED, "the email's receipt is saved, and turn 3 was about to be asked")

    child = stage.command("life 3", "resume", "ticket-77")
    stage.expect(child.says("already saved", "create_ticket"), "the third life was to know the ticket already")
    stage.expect(child.says("already saved", "send_email"), "the third life was to know the email already")
    stage.expect(child.says("run completed"), "the third life was to complete the run")
    stage.ended(child, 0, "the run was to be completed")
    stage.say()
    asks = stage.asked()
    stage.say(f"    model calls over all lives: {asks}, one for each turn (the plan was not asked again)")
    stage.expect(asks == 3, f"the model was to be asked 3 times and was asked {asks} times")  # noqa: PLR2004 - the turns
    stage.show_ledger(effects=2)


def second_story(stage: Stage) -> None:
    """The provider offers neither: nobody can know, so a person looks and says."""
    from counterfoil.cli.demo_flow import AFTER_TICKET

    stage.say()
    stage.say("2  The same at a provider that offers neither key nor lookup: OneShot", "bold")
    start = ("run", f"{FLOW}:one_shot", "--run-id", "ticket-78", "--input", "Login fails")
    child = stage.command("life 1", *start, die=AFTER_TICKET)
    stage.ended(child, KILLED, "the provider has the ticket, and the journal no receipt")

    child = stage.command("life 2", "resume", "ticket-78")
    stage.expect(child.says("UNKNOWN", "create_ticket"), "the second life was to call the ticket unknown")
    stage.ended(child, 3, "the run was to be unknown")
    tickets = stage.ledger.effects(endpoint="tickets")
    stage.expect(len(tickets) == 2, "the second run's ticket was to be there, once")  # noqa: PLR2004 - one of each run

    stage.say()
    stage.say("  A person looks at the provider, finds the ticket, and says so:", "dim")
    receipt = json.dumps(tickets[-1].result) if tickets else "none"
    words = ("resolve", "ticket-78", "1.1", "--applied", "--receipt", receipt, "--by", "you", "--reason", "it is there")
    child = stage.command("", *words)
    stage.ended(child, 0, "the verdict was to be accepted")

    child = stage.command("life 3", "resume", "ticket-78")
    stage.expect(child.says("already saved", "create_ticket"), "the third life was to take the person's word")
    stage.expect(child.says("effect applied", "send_email"), "the third life was to send the email")
    stage.expect(child.says("run completed"), "the third life was to complete the run")
    stage.ended(child, 0, "the run was to be completed")
    stage.show_ledger(effects=2)
