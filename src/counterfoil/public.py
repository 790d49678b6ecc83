"""Where the public names come from: imports, and nothing else. `counterfoil` hands them on when they are asked for."""

from counterfoil.core.contracts import (
    FOREVER,
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Transactional,
)
from counterfoil.core.events import Failure, Status, Verdict
from counterfoil.core.keys import KeyStyle
from counterfoil.core.limits import Limits, Usage
from counterfoil.core.mail import GiveVerdict
from counterfoil.core.rules import Rule
from counterfoil.errors import AlreadyExists, CounterfoilError, ModelError, NotApplied
from counterfoil.models.scripted import ScriptedModel
from counterfoil.runtime.agent import RunResult, aresume, arun, resume, run
from counterfoil.runtime.calls import Absent, Call, CannotTell, Found, Several
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.guard import Guarded, aguard, guard
from counterfoil.runtime.model import Decision, Model, ModelRequest, ToolCall
from counterfoil.runtime.run import Done, Go, Hold, NotDone, Replay, Run, Unsure, open_run
from counterfoil.runtime.tools import Tool, tool
from counterfoil.stores.open import open_store
from counterfoil.version import __version__

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
