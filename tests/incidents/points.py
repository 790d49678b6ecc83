"""Where a child of an incident test kills or stops itself."""

import os
import signal
from collections import Counter

_crossed: Counter[str] = Counter()


def cross(when: str, what: str) -> None:
    """Kill or stop this process if the test asked for it here."""
    name = f"{when}:{what}"
    _crossed[name] += 1
    for variable, number in (("KILL", signal.SIGKILL), ("STOP", signal.SIGSTOP)):
        wanted = os.environ.get(variable, "")
        if wanted in (name, f"{name}:{_crossed[name]}"):
            os.environ.pop(variable)
            os.kill(os.getpid(), number)
