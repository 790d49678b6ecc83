"""From MODULE:NAME or FILE.py:NAME to what stands there.

It must not guess where modules are: whoever starts the fork server passes its own search path on.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from counterfoil.errors import DefinitionError
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.guard import guard_flow
from counterfoil.runtime.tools import Tool


def load(entry: str) -> Any:
    """Return what an entry names.

    Raises:
        DefinitionError: it has no such form, or there is no such name. Whatever the module raises passes through.
    """
    place, colon, name = entry.rpartition(":")
    if not colon or not place or not name:
        raise DefinitionError(f"{entry!r} is not MODULE:NAME or FILE.py:NAME")
    found: Any = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DefinitionError(f"{place} has no {name}")
        found = getattr(found, part)
    return found


def load_flow(entry: str) -> Agent:
    """Return the flow that an entry names: an agent, a tool (the flow that makes one call of it), or what makes one.

    Raises:
        DefinitionError: it is none of these.
    """
    found = load(entry)
    if callable(found) and not isinstance(found, (Agent, Tool)):
        found = found()
    if isinstance(found, Tool):
        found.check()
        found = guard_flow(found)
    if not isinstance(found, Agent):
        raise DefinitionError(f"{entry} is a {type(found).__name__}, not an Agent or a Tool, nor makes one")
    found.entry = entry
    return found


def entry_of(thing: object) -> str:
    """Return an entry under which a fresh process finds what was passed to us: it stands in some module.

    Raises:
        DefinitionError: no module holds it under a name of its own.
    """
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        file = names.get("__file__")
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        for name, value in list(names.items()):
            if value is thing:
                return f"{Path(file).resolve()}:{name}"
    raise DefinitionError(
        f"{thing!r} is in no module's top level, so a fresh process cannot find it",
        remedy="Put it at the top level of a module, or pass MODULE:NAME.",
    )


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise DefinitionError(f"there is no file {path}")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and module.__name__ != "__main__":
            return module
    package, root = _package_of(path)
    if package:
        sys.path.insert(0, str(root))
        return importlib.import_module(f"{package}.{path.stem}")
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"counterfoil_flow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _package_of(path: Path) -> tuple[str, Path]:
    """Return the package that a file belongs to, and the folder that this is imported from."""
    names: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder
