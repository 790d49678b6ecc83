"""What an old journal depends on, its fingerprint, and every difference between two flows by name.

It must not look at code: the runtime describes a flow, this compares descriptions.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from counterfoil.core.contracts import Bounds, Contract

LOOP_RULES = 1
"""Version of the loop's meaning. A journal written under other rules is not continued."""


class ToolManifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a journal depends on in one tool; texts and schemas as short digests.

    Args:
        contract: as declared.
        bounds: timeouts and bounds, as declared.
        description: digest of what the model is told.
        arguments: digest of the argument schema.
        result: digest of the result schema.
    """

    contract: Contract
    bounds: Bounds = Bounds()
    description: str = ""
    arguments: str = ""
    result: str = ""


class FlowManifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flow as its journal sees it.

    Args:
        name: the flow's name.
        version: the author's own version.
        model: the model and its settings, as its adapter describes them.
        instructions: digest of the instructions.
        tools: by name.
        entry: MODULE:FLOW, where the command line finds it again; not part of the fingerprint.
        loop_rules: see `LOOP_RULES`.
    """

    name: str
    version: str
    model: dict[str, str] = {}
    instructions: str = ""
    tools: dict[str, ToolManifest] = {}
    entry: str = ""
    loop_rules: int = LOOP_RULES


class Difference(Struct, frozen=True, kw_only=True):
    """One way in which a flow differs from the one that a journal was written under."""

    where: str
    journal: str
    now: str

    def __str__(self) -> str:
        return f"{self.where}: was {self.journal}, is {self.now}"


def short_digest(data: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def fingerprint(flow: FlowManifest) -> str:
    """Return a short digest of all that an old journal depends on."""
    return short_digest(msgspec.json.encode(_flat(flow), order="sorted"))


def differences(journal: FlowManifest, now: FlowManifest) -> tuple[Difference, ...]:
    """Name each difference between the flow that a journal was written under and the one at hand."""
    old, new = _flat(journal), _flat(now)
    return tuple(
        Difference(where=where, journal=old.get(where, "absent"), now=new.get(where, "absent"))
        for where in sorted(old.keys() | new.keys())
        if old.get(where) != new.get(where)
    )


def _flat(flow: FlowManifest) -> dict[str, str]:
    flat = {
        "flow name": flow.name,
        "flow version": flow.version,
        "instructions": flow.instructions,
        "loop rules": str(flow.loop_rules),
    }
    flat |= {f"model {key}": value for key, value in flow.model.items()}
    for name, tool in flow.tools.items():
        flat[f"tool {name}"] = "present"
        flat[f"tool {name}: contract"] = msgspec.json.encode(tool.contract).decode()
        flat[f"tool {name}: bounds"] = msgspec.json.encode(tool.bounds).decode()
        flat[f"tool {name}: description"] = tool.description
        flat[f"tool {name}: arguments"] = tool.arguments
        flat[f"tool {name}: result"] = tool.result
    return flat
