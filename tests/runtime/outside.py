"""What the runtime tests judge by, and the small flows that they are made of."""

from dataclasses import dataclass
from typing import Any

import counterfoil as cf
from counterfoil.core.events import Event
from counterfoil.stores.protocol import Store
from counterfoil.testing.provider import ProviderProcess


@dataclass(frozen=True)
class Outside:
    """One endpoint of the provider: what really happened there."""

    provider: ProviderProcess
    endpoint: str

    @property
    def url(self) -> str:
        return f"{self.provider.url}/{self.endpoint}"

    def behave(self, **behaviour: Any) -> None:
        self.provider.behave(self.endpoint, **behaviour)

    @property
    def effects(self) -> int:
        return len(self.provider.ledger.effects(endpoint=self.endpoint))

    @property
    def requests(self) -> list[Any]:
        return [each for each in self.provider.ledger.requests(endpoint=self.endpoint) if each.method != "GET"]


def calling(*names: str, **arguments: Any) -> dict[str, Any]:
    """A decision that calls these tools, all with the same arguments."""
    return {"calls": [{"name": name, "arguments": arguments} for name in names]}


def agent(*tools: cf.Tool, turns: list[Any] | None = None, **options: Any) -> cf.Agent:
    """An agent that calls each tool once, in one turn, and is done."""
    script = turns if turns is not None else [calling(*(tool.name for tool in tools))]
    model = cf.ScriptedModel([*script, {"text": "done"}], check_history=True)
    return cf.Agent("test", version="1", model=model, tools=tools, **options)


async def events(store: Store, run_id: str = "r1") -> list[Event]:
    return [recorded.event for recorded in await store.events(run_id)]


def kinds(found: list[Event]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in found]
