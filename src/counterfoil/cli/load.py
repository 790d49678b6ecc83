"""From MODULE:FLOW on the command line to a flow.

It must not hide why a module cannot be imported: one line says it, with the place where it happened.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from counterfoil.cli.messages import Usage
from counterfoil.errors import CounterfoilError, DefinitionError
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.guard import guard_flow
from counterfoil.runtime.tools import Tool


def load_flow(entry: str) -> Agent:
    """Return the flow that MODULE:FLOW names, with ``entry`` set so that a resume finds it again.

    Args:
        entry: MODULE is a dotted module (the working folder is searched too) or a path to a .py file; FLOW an Agent,
            a Tool (it becomes the flow that makes one call of it), or a callable without arguments that returns one.

    Raises:
        Usage: there is no such module, file or name, or it is no flow.
        DefinitionError: the flow cannot be used as written.
    """
    place, name = _split(entry)
    module = _module(place)
    flow = _flow(module, place, name)
    flow.entry = entry
    return flow


def guarded_tool(flow: Agent) -> Tool | None:
    """Return the tool of a flow that makes one call of it, or None for any other flow."""
    tools = list(flow.tools.values())
    return tools[0] if flow.name.startswith("guard:") and len(tools) == 1 else None


def _split(entry: str) -> tuple[str, str]:
    place, colon, name = entry.rpartition(":")
    if not colon or not place or not name or "/" in name or "\\" in name:
        found = _named_in(entry) if entry else ""
        raise Usage(f"{entry!r} does not say which flow: write MODULE:FLOW", remedy=found or "As in app.flows:support.")
    return place, name


def _named_in(place: str) -> str:
    """Say which flows a module has, if it can be imported."""
    try:
        return _choices(_module(place), place)
    except CounterfoilError:
        return ""


def _module(place: str) -> ModuleType:
    try:
        if place.endswith(".py") or "/" in place or "\\" in place:
            return _from_file(place)
        return _from_name(place)
    except (CounterfoilError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        last = inside[-1] if inside else frames[-1]
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise Usage(
            f"{place} cannot be imported: {what} ({last.filename}:{last.lineno} in {last.name})",
            remedy="Mend the module; nothing was run. --debug shows the whole traceback.",
        ) from error


def _from_name(place: str) -> ModuleType:
    root, here = place.partition(".")[0], str(Path.cwd())
    if importlib.util.find_spec(root) is None and here not in sys.path:
        sys.path.insert(0, here)  # only where it is needed: a folder of odd scripts must not shadow a library
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise Usage(
            f"there is no module {place}" + (f": {error.name} is missing" if error.name != place else ""),
            remedy="Give a dotted module that can be imported from here, or a path to a .py file.",
        ) from error


def _from_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise Usage(f"there is no file {place}", remedy=f"It was looked for as {path}.")
    if path.suffix != ".py":
        raise Usage(f"{place} is no .py file", remedy="Give a path to a .py file, or a dotted module.")
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"counterfoil_flow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _flow(module: ModuleType, place: str, name: str) -> Agent:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Usage(f"{place} has no {name}", remedy=_choices(module, place)) from None
    if not isinstance(found, (Agent, Tool)) and callable(found):
        found = _made(found, f"{place}:{name}")
    if isinstance(found, Tool):
        found.check()
        return guard_flow(found)
    if isinstance(found, Agent):
        return found
    raise Usage(
        f"{place}:{name} is a {type(found).__name__}, not an Agent, a Tool, or a callable that returns one",
        remedy=_choices(module, place),
    )


def _made(factory: Any, what: str) -> Any:
    try:
        return factory()
    except (CounterfoilError, KeyboardInterrupt):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise DefinitionError(
            f"{what}() raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})",
            remedy="FLOW is an Agent, a Tool, or a callable without arguments that returns one.",
        ) from error


def _choices(module: ModuleType, place: str) -> str:
    flows = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    tools = sorted(name for name, value in vars(module).items() if isinstance(value, Tool))
    if not flows and not tools:
        return f"There is neither an Agent nor a Tool in {place}."
    named = [f"{place}:{name}" for name in flows] + [f"{place}:{name} (a tool)" for name in tools]
    return "There are: " + ", ".join(named) + "."
