"""Help, version, and the way in which errors are said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.harness import Cli

COMMANDS = ("demo run resume cancel runs show explain inbox resolve verify prune provider doctor").split()  # noqa: SIM905 - a list of words reads as one


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_purpose_example_and_exit_codes(cli: Cli, name: str) -> None:
    said = cli(name, "--help")
    assert said.code == 0
    assert "Example:" in said.out
    assert f"counterfoil {name}" in said.out
    assert "Exit codes:" in said.out
    takes_json = "--json" in said.out
    assert takes_json == ("Keys of the JSON document:" in said.out)
    purpose = said.out.splitlines()[2].strip()
    assert purpose
    assert len(purpose) < 100


def test_the_first_page_lists_every_command(cli: Cli) -> None:
    first = cli("--help")
    assert first.code == 0
    assert cli().out == first.out
    assert [name for name in COMMANDS if f"\n  {name} " not in first.out] == []


def test_version(cli: Cli) -> None:
    import counterfoil

    assert cli("--version").out == f"counterfoil {counterfoil.__version__}\n"


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_nothing_heavy_is_loaded_to_answer_at_once(word: str) -> None:
    heavy = ("rich", "httpx", "httpx2", "pydantic", "openai", "tenacity")
    code = (
        "import atexit, sys; from counterfoil.cli.main import main;"
        f"atexit.register(lambda: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


USAGE = [
    (("rum",), "Did you mean 'run'"),
    (("run",), "missing"),
    (("show", "--nonsense", "r1"), "--nonsense"),
    (("runs", "--limit", "0"), "--limit"),
]


@pytest.mark.parametrize("words,said", USAGE)
def test_a_mistyped_command_is_one_line_and_a_next_step(cli: Cli, words: tuple[str, ...], said: str) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert said.lower() in ran.err.lower()
    assert "--help" in ran.err
    assert len(ran.err.splitlines()) == 2


def test_a_bug_is_called_one_and_shows_its_traceback_when_asked(cli: Cli) -> None:
    plant = "import sys; from counterfoil.cli import main, care; main.app.command('burst')(lambda: 1 / 0);"
    code = plant + "sys.argv = ['counterfoil', *sys.argv[1:]]; main.main()"

    def burst(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", code, *words]
        return subprocess.run(argv, env=cli.env | env, capture_output=True, text=True, check=False)

    quiet = burst("burst")
    assert quiet.returncode == 1
    assert "this is a bug in counterfoil" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    assert "--debug" in quiet.stderr
    for loud in (burst("burst", "--debug"), burst("--debug", "burst"), burst("burst", COUNTERFOIL_DEBUG="1")):
        assert loud.returncode == 1
        assert "ZeroDivisionError" in loud.stderr
        assert "Traceback" in loud.stderr


def test_a_closed_pipe_is_no_error(cli: Cli) -> None:
    for number in range(3):
        assert cli.run("quick", f"r{number}").code == 0
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "counterfoil.cli", "runs", "--json"]
    with os.fdopen(writer, "wb") as broken:
        done = subprocess.run(argv, env=cli.env, stdout=broken, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
    assert done.returncode != 0
