"""The command `counterfoil`: its commands, and the one place where errors become a line and an exit code.

It must not load a command's work before that command is called.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from counterfoil.cli import messages
from counterfoil.errors import CounterfoilError
from counterfoil.version import __version__

INTERRUPTED = 130
BROKEN_PIPE = 141

app = typer.Typer(
    name="counterfoil",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def counterfoil(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show tracebacks, as does {messages.DEBUG}=1. It may stand anywhere.")
    ] = False,
) -> None:
    """Kill an agent anywhere, resume it, and every effect is there once or is marked unknown.

    \b
    Example:
      counterfoil demo
      counterfoil run app.flows:support --run-id ticket-77 --input "Login fails"
      counterfoil resume ticket-77
      counterfoil show ticket-77

    \b
    Exit codes of run and resume:
        0  completed          5  blocked
        1  failed             6  cancelled
        2  usage             65  journal damaged or newer
        3  unknown           74  store unavailable
        4  waiting           75  owned by another worker
                            130  interrupted, drained, resumable
    """  # noqa: D301 - click's own mark for lines that are not to be wrapped
    if debug:
        os.environ[messages.DEBUG] = "1"
    if version:
        print(f"counterfoil {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def register() -> None:
    """Add every command."""
    from counterfoil.cli import bench, care, crashtest, demo, provider, read, run, settle

    for group in (demo, run, settle, read, care, crashtest, bench, provider):
        group.register(app)
    for command in app.registered_commands:  # Whole, where click would cut it off.
        command.short_help = (command.help or "").partition("\n")[0]


register()


def main() -> None:
    """Run the command line and leave with its exit code."""
    words = sys.argv[1:]
    options = words[: words.index("--")] if "--" in words else words
    if "--debug" in options:
        words.remove("--debug")
        os.environ[messages.DEBUG] = "1"
    if words == ["--version"]:  # Said before typer loads what it reads options with.
        print(f"counterfoil {__version__}")
        return
    sys.exit(run_words(words))


def run_words(words: list[str]) -> int:
    """Run one command and return its exit code. Only what `--debug` asks for ends in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=words, prog_name="counterfoil", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        messages.note("interrupted; nothing was under way")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(messages.DEBUG):
            raise
        return _explained(error)
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> int:
    """Say what went wrong in a line, and return the exit code for it."""
    if isinstance(error, CounterfoilError):
        messages.error(error.message, error.remedy)
        return error.exit_code
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer brings click, or a copy of it
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "counterfoil"
        message = error.format_message().strip().rstrip(".")
        messages.error(f"{path}: {message[:1].lower()}{message[1:]}", f"See `{path} --help`.")
        return int(error.exit_code)
    messages.error(
        f"unexpected {type(error).__name__}: {error} (this is a bug in counterfoil)",
        f"Run it again with --debug for the traceback, or set {messages.DEBUG}=1, and report it.",
    )
    return 1
