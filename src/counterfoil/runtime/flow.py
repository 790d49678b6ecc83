"""A flow as the runtime holds it: the agent that users write, and the two views of it that core works with.

It must not keep anything of a run: one flow serves any number of runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from counterfoil.core.flow import FlowManifest, differences, short_digest
from counterfoil.core.limits import Limits
from counterfoil.core.plan import FlowView
from counterfoil.errors import DefinitionError
from counterfoil.runtime.model import Model, ToolSpec
from counterfoil.runtime.tools import Tool


class Agent:
    """A flow: a model, its instructions and its tools.

    Args:
        name: the flow's name.
        version: your own version of it; a run is continued only by the version that it was started under.
        model: asked for decisions.
        tools: what it may call, made with `tool`.
        instructions: given to the model with every question.
        limits: what a run may spend over all its lives.
        parallel: calls of one turn may run beside each other; otherwise only where every one of them says so.

    Raises:
        DefinitionError: a model that cannot be asked, two tools of one name, or a tool that cannot keep what it
            declares.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str,
        model: Model,
        tools: Sequence[Tool] = (),
        instructions: str = "",
        limits: Limits | None = None,
        parallel: bool = False,
    ) -> None:
        missing = [f"{method}()" for method in ("describe", "decide") if not callable(getattr(model, method, None))]
        if missing:
            raise DefinitionError(
                f"flow {name}: {type(model).__name__} is not a model, for it has no {' and no '.join(missing)}",
                remedy="Pass an object with describe() and decide(), such as cf.ScriptedModel([...]).",
            )
        self.entry = ""
        """MODULE:FLOW, where the command line found it."""
        self.name = name
        self.version = version
        self.model = model
        self.instructions = instructions
        self.limits = limits or Limits()
        self.parallel = parallel
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise DefinitionError(f"flow {name}: {tool!r} is not a tool", remedy="Decorate it with @cf.tool.")
            if tool.name in self.tools:
                raise DefinitionError(f"flow {name} has two tools named {tool.name}")
            tool.check()
            self.tools[tool.name] = tool

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is told of them."""
        return tuple(tool.spec for tool in self.tools.values())

    @cached_property
    def manifest(self) -> FlowManifest:
        """What a journal depends on."""
        return FlowManifest(
            name=self.name,
            version=self.version,
            model={key: str(value) for key, value in self.model.describe().items()},
            instructions=short_digest(self.instructions.encode()),
            tools={name: tool.manifest for name, tool in self.tools.items()},
        )

    def view(self, journal: FlowManifest) -> FlowView:
        """Return what the plan must know of this flow, for a run that was started under ``journal``."""
        tools = {name: tool.view for name, tool in self.tools.items()}
        if self.parallel:
            tools = {name: view.beside_others() for name, view in tools.items()}
        return FlowView(tools=tools, differences=differences(journal, self.manifest))

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Tools without a declared contract: they are `OneShot`."""
        return tuple(name for name, tool in self.tools.items() if not tool.declared)
