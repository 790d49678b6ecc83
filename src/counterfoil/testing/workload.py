"""The measuring rod: a run of as many turns as wanted, with one call each: 200 B of arguments in, 500 B of result out.

It must not cost anything worth measuring: every payload differs from every other, and none of them is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from counterfoil.core.contracts import FOREVER, Contract, Keyed
from counterfoil.core.limits import Limits
from counterfoil.runtime.calls import Call
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Decision, ModelRequest, ToolCall
from counterfoil.runtime.tools import Tool, tool

ARGUMENT_BYTES = 200
RESULT_BYTES = 500
CALLED = "step"
_NUMBER = 12  # Digits of a turn's number, in every payload.
_FILLER = "0123456789abcdef" * (RESULT_BYTES // 16 + 2)


def arguments_of(turn: int) -> str:
    """Return the arguments of a turn's call: JSON text of `ARGUMENT_BYTES` bytes."""
    return f'{{"text":"{_payload(turn, ARGUMENT_BYTES - 11)}"}}'


def result_of(turn: int) -> dict[str, str]:
    """Return the result of a turn's call: `RESULT_BYTES` bytes as JSON."""
    return {"back": _payload(turn, RESULT_BYTES - 11)}


def turn_of(arguments: str) -> int:
    """Return the turn whose payload this is."""
    return int(arguments[:_NUMBER])


def _payload(turn: int, size: int) -> str:
    shift = turn % 16
    return f"{turn:0{_NUMBER}d}{_FILLER[shift : shift + size - _NUMBER]}"


def step_tool(
    contract: Contract | None = None, *, late: bool = False, entered: Callable[[int], None] | None = None
) -> Tool:
    """Return the tool: it does nothing but answer.

    Args:
        contract: `Keyed` by default: two commits a turn, as most contracts have.
        late: it writes its own dispatch mark.
        entered: told of the turn whenever the tool is entered.
    """

    async def step(text: str, *, call: Call) -> dict[str, str]:
        """Answer."""
        turn = turn_of(text)
        if entered is not None:
            entered(turn)
        if late:
            await call.sending()
        return result_of(turn)

    return tool(
        name=CALLED,
        contract=Keyed(remembered_for=FOREVER) if contract is None else contract,
        dispatch="late" if late else "entry",
    )(step)


class Turns:
    """A model that asks for one call a turn until it is told to end, and counts how often it was asked.

    Args:
        wanted: whether there is to be another turn, by its number.
        calls: how many calls a turn has.
    """

    def __init__(self, wanted: Callable[[int], bool], calls: int = 1) -> None:
        self._wanted = wanted
        self._calls = calls
        self.asked = 0

    def describe(self) -> Mapping[str, str]:
        """Return its name: every `Turns` is the same flow."""
        return {"model": "turns"}

    async def decide(self, request: ModelRequest) -> Decision:
        """Ask for the turn's calls, or for none."""
        self.asked += 1
        if not self._wanted(request.turn):
            return Decision(text="done")
        arguments = arguments_of(request.turn)
        return Decision(calls=tuple(ToolCall(name=CALLED, arguments=arguments) for _ in range(self._calls)))


def turns_flow(wanted: Callable[[int], bool], called: Tool | None = None) -> Agent:
    """Return a flow that makes one call a turn as long as another turn is wanted."""
    return Agent("turns", version="1", model=Turns(wanted), tools=[called or step_tool()], limits=Limits(turns=None))
