"""The three programs of docs/how-to/guard-one-function.md, each killed between the refund and its receipt."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil.testing.provider import ProviderProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "guard"


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[ProviderProcess]:
    with ProviderProcess(tmp_path / "ledger.db") as running:
        yield running


def start(provider: ProviderProcess, folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"COUNTERFOIL_PROVIDER_URL": provider.url}
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def kill_after_the_effect(provider: ProviderProcess, process: subprocess.Popen[str]) -> None:
    """The provider has applied the effect and holds its answer back: that is when the process dies."""
    while not provider.ledger.count():
        assert process.poll() is None, "it ended before its effect"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()


def once(provider: ProviderProcess) -> bool:
    return list(provider.ledger.effects_by_key().values()) == [1]


def test_the_script(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.behave("refunds", fault="slow", seconds=3, times=1)
    kill_after_the_effect(provider, start(provider, tmp_path, "script.py", "77", "500"))
    for _ in range(2):
        again = start(provider, tmp_path, "script.py", "77", "500")  # "in flight" is an answer to try again
        assert again.communicate(timeout=60)[0] == "refunded: refunds-1\n"
    assert once(provider)


def test_the_queue_job(provider: ProviderProcess, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    (queue / "m1.json").write_text('{"order": "77", "cents": 500}')
    provider.behave("refunds", fault="slow", seconds=3, times=1)
    kill_after_the_effect(provider, start(provider, tmp_path, "queue_job.py", "queue"))
    assert list(queue.iterdir()), "not acknowledged, so it comes again"
    again = start(provider, tmp_path, "queue_job.py", "queue")
    assert again.communicate(timeout=60)[0] == "m1 refunded: refunds-1\n"
    assert not list(queue.iterdir())
    assert once(provider)


def test_the_web_handler(provider: ProviderProcess, tmp_path: Path) -> None:
    def serve() -> tuple[subprocess.Popen[str], str]:
        process = start(provider, tmp_path, "web_handler.py", "0")
        assert process.stdout is not None
        return process, process.stdout.readline().rsplit(" ", 1)[1].strip()

    def post(port: str, timeout: float) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/refunds/77?cents=500", method="POST")
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return str(answer.read().decode())

    provider.behave("refunds", fault="slow", seconds=3, times=1)
    first, port = serve()
    with pytest.raises(OSError, match="timed out"):
        post(port, 1.5)  # the client gives up; the handler is still waiting for the provider
    kill_after_the_effect(provider, first)
    second, port = serve()
    assert post(port, 60) == "refunded: refunds-1"
    assert post(port, 60) == "refunded: refunds-1"
    second.kill()
    second.communicate()
    assert once(provider)
