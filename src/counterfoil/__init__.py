"""counterfoil: kill an agent anywhere, resume it, and every effect is there once or is marked unknown.

The public names stand in `counterfoil.public` and are loaded with the first one that is used, so that a process that
needs only a part of the package (a test's provider, ``counterfoil --help``) does not pay for the rest.
"""

from typing import TYPE_CHECKING

from counterfoil.version import __version__

if TYPE_CHECKING:
    from counterfoil.public import *

__all__ = [
    "FOREVER",
    "Absent",
    "Agent",
    "AlreadyExists",
    "Call",
    "CannotTell",
    "ClientId",
    "Contract",
    "CounterfoilError",
    "Decision",
    "Done",
    "Failure",
    "Found",
    "GiveVerdict",
    "Go",
    "Guarded",
    "Hold",
    "KeyStyle",
    "Keyed",
    "Limits",
    "Lookup",
    "Model",
    "ModelError",
    "ModelRequest",
    "NotApplied",
    "NotDone",
    "OneShot",
    "Read",
    "Repeatable",
    "Replay",
    "Rule",
    "Run",
    "RunResult",
    "ScriptedModel",
    "Several",
    "Status",
    "Tool",
    "ToolCall",
    "Transactional",
    "Unsure",
    "Usage",
    "Verdict",
    "__version__",
    "aguard",
    "aresume",
    "arun",
    "guard",
    "open_run",
    "open_store",
    "resume",
    "run",
    "tool",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    from counterfoil import public  # noqa: PLC0415 - see above

    globals().update((each, getattr(public, each)) for each in __all__)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
