"""`@tool`: a function, what it declares about recovery, its argument schema and its result type.

It must not run anything: `perform` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_type_hints, overload

import msgspec
from msgspec import Raw

from counterfoil.core.contracts import Bounds, Contract, Keyed, OneShot, Terms, key_style, lines, needs_lookup
from counterfoil.core.events import Failure
from counterfoil.core.flow import ToolManifest, short_digest
from counterfoil.core.keys import KeyStyle
from counterfoil.core.plan import ToolView
from counterfoil.errors import DefinitionError, NotApplied
from counterfoil.runtime.calls import Call
from counterfoil.runtime.model import ToolSpec
from counterfoil.runtime.values import ResultType, failure_of, storable

if TYPE_CHECKING:
    from pydantic import BaseModel


_BOUNDS: Final = Bounds()


class Tool:
    """A tool. Made by `tool`; add its lookup with ``@name.lookup``.

    Calling it runs the bare function, without any of the guarantees: for unit tests.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        contract: Contract | None,
        bounds: Bounds,
        parallel: bool,
        late: bool,
        scope: str | Callable[[], str],
        verify_first: bool,
        children: bool,
        not_applied: tuple[type[Exception] | int, ...],
    ) -> None:
        self.function = function
        self.name = name
        self.declared = contract is not None
        self.contract: Contract = contract or OneShot()
        self.bounds = bounds
        self.parallel = parallel
        self.late = late
        self.verify_first = verify_first
        self.children = children
        declared = (proof for proof in not_applied if isinstance(proof, type))
        self.not_applied: tuple[type[Exception], ...] = (NotApplied, *declared)
        self.not_applied_status = tuple(proof for proof in not_applied if isinstance(proof, int))
        self._scope = scope
        self.find: Callable[[Call], Any] | None = None
        self.is_async = inspect.iscoroutinefunction(function)
        self.description = inspect.cleandoc(function.__doc__ or "")
        self._hints = _hints(function, name)
        parameters = list(inspect.signature(function).parameters)
        self._names = {f"p{number}": each for number, each in enumerate(parameters) if each != "call"}
        self.takes_call = "call" in parameters
        self.result = ResultType(self._hints.pop("return", Any), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the bare function, without any of the guarantees."""
        return self.function(*args, **kwargs)

    def lookup(self, find: Callable[[Call], Any]) -> Callable[[Call], Any]:
        """Register the function that looks the effect up by our key: `Found`, `Several`, `Absent` or `CannotTell`."""
        self.find = find
        return find

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The argument schema, as a pydantic model made from the type hints.

        Raises:
            DefinitionError: a parameter's type has no JSON schema.
        """
        from pydantic import ConfigDict, Field, create_model  # noqa: PLC0415 - 50 ms, paid when a tool is first used
        from pydantic.fields import FieldInfo  # noqa: PLC0415 - as above

        # Fields are numbered and only aliased to the names, since a model has methods called `json` and `copy`.
        fields: dict[str, Any] = {}
        parameters = inspect.signature(self.function).parameters
        for field, name in self._names.items():
            given = parameters[name].default
            if isinstance(given, FieldInfo):
                wanted = f"{name}: Annotated[..., Field(...)] = ..."
                raise DefinitionError(
                    f"tool {self.name}: write {wanted}; a Field as the default is no value to call with"
                )
            default = ... if given is inspect.Parameter.empty else given
            fields[field] = (self._hints.get(name, Any), Field(default, alias=name))
        try:
            model: type[BaseModel] = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)
            model.model_json_schema()
        except Exception as error:
            raise DefinitionError(f"tool {self.name}: its parameters cannot be described as JSON ({error})") from error
        return model

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model is told of it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.arguments.model_json_schema())

    @cached_property
    def manifest(self) -> ToolManifest:
        """What a journal depends on in it."""
        return ToolManifest(
            contract=self.contract,
            bounds=self.bounds,
            description=short_digest(self.description.encode()),
            arguments=short_digest(msgspec.json.encode(self.spec.parameters, order="sorted")),
            result=self.result.schema,
        )

    @property
    def style(self) -> KeyStyle | None:
        """How the provider wants the key."""
        return key_style(self.contract)

    @property
    def view(self) -> ToolView:
        """What the plan must know; the scope is read now."""
        terms = Terms(
            contract=self.contract,
            bounds=self.bounds,
            scope=self._scope() if callable(self._scope) else self._scope,
            verify_first=self.verify_first,
            children=self.children,
        )
        return ToolView(terms=terms, can_look=self.find is not None, parallel=self.parallel, late=self.late)

    def check(self) -> None:
        """Raise `DefinitionError` where the definition cannot keep what it declares."""
        if needs_lookup(self.contract) and self.find is None:
            raise DefinitionError(
                f"tool {self.name} declares {type(self.contract).__name__} with a lookup, but has none",
                remedy=f"Add a function decorated with @{self.name}.lookup.",
            )
        line, _ = lines(self.contract)
        if isinstance(line, Keyed) and line.remembered_for is not None:
            needed = self.bounds.timeout + line.margin
            if line.remembered_for <= needed:
                raise DefinitionError(
                    f"tool {self.name}: a key that is remembered for {line.remembered_for} can never be used again: "
                    f"timeout {self.bounds.timeout} and margin {line.margin} come off it",
                    remedy="Give the tool a shorter timeout or margin.",
                )
        _ = self.manifest

    def proves_not_applied(self, error: BaseException) -> bool:
        """Tell whether an error proves that the attempt changed nothing: only what the author declared does."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        return isinstance(error, self.not_applied) or (status is not None and status in self.not_applied_status)

    def parse(self, arguments: Raw) -> Mapping[str, Any]:
        """Return the arguments as the function wants them. Raises `pydantic.ValidationError`."""
        model = self.arguments.model_validate_json(bytes(arguments))
        return {name: getattr(model, field) for field, name in self._names.items()}

    def as_decided(self, arguments: Raw) -> Mapping[str, Any]:
        """Return the arguments for a lookup: as plain JSON where they were decided for an older type of them."""
        from pydantic import ValidationError  # noqa: PLC0415 - loaded with the schema

        try:
            return self.parse(arguments)
        except ValidationError:
            plain = msgspec.json.decode(arguments)
            return plain if isinstance(plain, dict) else {}

    def refusal(self, arguments: str) -> Failure | None:
        """Return why arguments (JSON text as the model gave it) can never be dispatched, or None."""
        from pydantic import ValidationError  # noqa: PLC0415 - loaded with the schema

        try:
            self.parse(Raw(arguments.encode()))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc']) or 'arguments'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)
            )
            return Failure(kind="InvalidArguments", message=storable(f"{self.name}: {problems}"))
        except Exception as error:  # noqa: BLE001 - a type's own validator may raise anything; nothing was dispatched
            failure = failure_of(error)
            return Failure(kind="InvalidArguments", message=f"{self.name}: {failure.kind}: {failure.message}")
        return None


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"tool {name} is a generator: calling it would run nothing; return a value")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(f"tool {name}: parameter {parameter.name} must be a named one; a model passes names")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(f"tool {name}: its type hints cannot be read ({error})") from error
    if hints.get("call", Call) not in (Call, Any):
        raise DefinitionError(f"tool {name}: its parameter `call` is handed the `Call`; give another one another name")
    return hints


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    contract: Contract | None = None,
    name: str | None = None,
    timeout: timedelta = ...,
    repeats: int = ...,
    lookups: int = ...,
    proof_within: timedelta = ...,
    parallel: bool = False,
    dispatch: Literal["entry", "late"] = "entry",
    scope: str | Callable[[], str] = "",
    verify_first: bool = False,
    children: bool = False,
    not_applied: tuple[type[Exception] | int, ...] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    contract: Contract | None = None,
    name: str | None = None,
    timeout: timedelta = _BOUNDS.timeout,
    repeats: int = _BOUNDS.repeats,
    lookups: int = _BOUNDS.lookups,
    proof_within: timedelta = _BOUNDS.proof_within,
    parallel: bool = False,
    dispatch: Literal["entry", "late"] = "entry",
    scope: str | Callable[[], str] = "",
    verify_first: bool = False,
    children: bool = False,
    not_applied: tuple[type[Exception] | int, ...] = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync (it runs in a thread) or async.

    Args:
        function: the function; its type hints give the argument schema and the result type, its docstring the
            description. A keyword parameter named ``call`` gets the `Call`.
        contract: what may be done about a call whose outcome is not known. Without one it is `OneShot`: never repeated.
        name: what the model calls it; the function's name by default.
        timeout: one attempt. When it is over the attempt is unsure, not failed.
        repeats: attempts after the first, over all lives.
        lookups: lookups for one question, in one life.
        proof_within: how long to wait for proof that an earlier sender has ended.
        parallel: may run beside its siblings of the same turn.
        dispatch: ``late``: the tool sends only through ``call.http`` or after ``call.sending()``, which writes the mark
            directly before the bytes leave.
        scope: account, region, endpoint or credential in which the key means anything.
        verify_first: look the effect up even before the first dispatch.
        children: it starts processes other than through ``call.spawn``.
        not_applied: what proves that the attempt changed nothing: exceptions, and HTTP statuses (of an error with a
            ``response``, as ``raise_for_status`` raises) that the provider documents as "not processed".

    Returns:
        The tool.

    Raises:
        DefinitionError: the function's types cannot be stored or described.
    """
    if function is None:
        return partial(
            _make,
            contract=contract,
            name=name,
            bounds=Bounds(timeout=timeout, repeats=repeats, lookups=lookups, proof_within=proof_within),
            parallel=parallel,
            late=dispatch == "late",
            scope=scope,
            verify_first=verify_first,
            children=children,
            not_applied=not_applied,
        )
    return tool()(function)


def _make(function: Callable[..., Any], *, name: str | None, **declared: Any) -> Tool:
    return Tool(function, name=name or str(getattr(function, "__name__", "tool")), **declared)
