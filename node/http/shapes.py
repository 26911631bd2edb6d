"""What requests may say: closed models, and one wording for whatever does not fit.

Bodies and query strings are data from strangers, so every field has a type and a bound, an
unknown name is refused by name, and no message repeats a value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from storage.errors import InvalidInput
from storage.model import MemoryId

MAX_NAME: Final = 256
MAX_SHOWN: Final = 64
MAX_VALUES: Final = 32
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
MAX_OFFSET: Final = 100_000
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
MAX_TTL_S: Final = 100 * 365 * 86_400


class Shape(BaseModel):
    """A closed, strictly typed group of fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Nothing(Shape):
    """A request without fields."""


S = TypeVar("S", bound=Shape)


def said(text: str) -> PydanticCustomError:
    """A fault whose wording follows the field's name."""
    return PydanticCustomError("said", "{text}", {"text": text})


def _moment(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 64:
        raise said("is invalid")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise said("is invalid") from None
    if moment.tzinfo is None:
        raise said("must carry a time zone")
    try:
        utc = moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise said("is invalid") from None
    if not EARLIEST <= utc <= LATEST:
        raise said("is invalid")
    return utc


def _ttl(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_TTL_S:
        raise said("is invalid")
    return value


def _tags(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


def _flag(value: object) -> object:
    return (
        {"1": True, "true": True, "0": False, "false": False}.get(value, value)
        if isinstance(value, str)
        else value
    )


def _several(value: object) -> object:
    """One value, several with commas between them, or a list."""
    found = _tags(value)
    if isinstance(found, tuple) and len(found) > MAX_VALUES:
        raise said(f"has more than {MAX_VALUES} values")
    return found


def _number(value: object) -> object:
    if not isinstance(value, str):
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        return float(value) if len(value) <= 32 else value
    except ValueError:
        return value


def whole(value: object) -> object:
    """A number written in a query string as a number; anything else as it is."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _clamped(value: object, low: int, high: int) -> int | None:
    """A whole number moved into the bounds, None for what cannot be read as one."""
    if isinstance(value, str):
        if _WHOLE.fullmatch(value) is None:
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return min(max(value, low), high)


def limited(default: int, low: int, high: int) -> Any:
    """A whole number: what cannot be read counts as `default`, the rest moves into the bounds."""

    def clamp(value: object) -> int:
        number = _clamped(value, low, high)
        return default if number is None else number

    return Annotated[int, BeforeValidator(clamp)]


Moment: TypeAlias = Annotated[datetime | None, BeforeValidator(_moment)]
Ttl: TypeAlias = Annotated[int | None, BeforeValidator(_ttl)]
Tags: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_tags)]
MaybeTags: TypeAlias = Annotated[tuple[str, ...] | None, BeforeValidator(_tags)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag)]
MaybeFlag: TypeAlias = Annotated[bool | None, BeforeValidator(_flag)]
Number: TypeAlias = Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(_number)]
Patience: TypeAlias = Annotated[
    int | None, BeforeValidator(lambda value: _clamped(value, 1, 60_000))
]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Several: TypeAlias = Annotated[tuple[Name, ...], BeforeValidator(_several)]
IdText: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Vector: TypeAlias = Annotated[list[float], Field(min_length=1, max_length=8192)]


class RememberBody(Shape):
    """One memory to store."""

    content: str
    agent_id: Name | None = None
    project: Name | None = None
    type: str = "fact"
    tags: Tags = ()
    who: str | None = None
    importance: float = 0.5
    pinned: bool = False
    visibility: Literal["global", "private", "archived"] = "global"
    scope: str | None = None
    source_type: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    ttl_seconds: Ttl = None
    expires_at: Moment = None
    created_at: Moment = None
    vector: Vector | None = None


class SaveBody(RememberBody):
    """One memory, or a text in parts that are stored together: `chunks` in place of `content`."""

    content: str = ""
    chunks: list[str] | None = None


class ModifyBody(Shape):
    """What of a memory is to become another; what is left out stays."""

    id: IdText
    agent_id: Name | None = None
    content: str | None = None
    type: str | None = None
    tags: MaybeTags = None
    importance: float | None = None
    pinned: bool | None = None
    visibility: Literal["global", "private", "archived"] | None = None


class BatchBody(Shape):
    """Memories to store; each is judged on its own."""

    memories: list[Any]
    agent_id: Name | None = None
    project: Name | None = None


class BulkFilters(Shape):
    """What own memories must be like to be ended; lists may be comma-separated text.

    See `storage/filters.py`.
    """

    project: Several = ()
    type: Several = ()
    tags: Several = ()
    who: Several = ()
    since: Moment = None
    until: Moment = None
    importance_min: Number = None
    pinned: MaybeFlag = None
    visibility: Literal["global", "private"] | None = None
    scope: Name | None = None


class FilterFields(BulkFilters):
    """What hits must be like."""

    agent: Several = ()
    kind: Several = ()


class RecallBody(Shape):
    """A question. `filters` is closed too, and named apart so that its faults say so.

    A `session_key` of the form `agent:NAME:REST` names the agent where `agent_id` does not.
    """

    query: str = ""
    agent_id: Name | None = None
    session_key: Name | None = None
    about: Name | None = None
    project: Name | None = None
    scope: Name | None = None
    limit: limited(10, 1, 50) = 10  # type: ignore[valid-type]
    include_superseded: bool = False
    fast: bool = False
    explain: bool = False
    deadline_ms: Patience = None
    filters: dict[str, Any] = {}
    vector: Vector | None = None


class SearchQuery(FilterFields):
    """The same question in a query string, with its filters beside it."""

    q: str
    agent_id: Name | None = None
    session_key: Name | None = None
    about: Name | None = None
    limit: limited(10, 1, 50) = 10  # type: ignore[valid-type]
    include_superseded: Flag = False
    fast: Flag = False
    explain: Flag = False
    deadline_ms: Patience = None


class EndBody(Shape):
    """Memories by id, one or several; or all own ones that match `filters`; or a `query`, which
    only shows what it would mean. `dry_run` counts what the filters match."""

    id: IdText | None = None
    ids: list[IdText] | None = None
    query: Annotated[str, Field(min_length=1)] | None = None
    filters: dict[str, Any] | None = None
    dry_run: bool = False
    agent_id: Name | None = None
    reason: Annotated[str, Field(max_length=1024)] | None = None


class OneIdBody(Shape):
    """One memory by id."""

    id: IdText
    agent_id: Name | None = None


class AgentQuery(Shape):
    """On whose behalf a read runs."""

    agent_id: Name | None = None


class ListQuery(Shape):
    """Where a page of a list begins: behind a cursor, or after so many."""

    agent_id: Name | None = None
    cursor: Annotated[str, Field(max_length=256)] | None = None
    offset: limited(0, 0, MAX_OFFSET) = 0  # type: ignore[valid-type]


class PageQuery(ListQuery):
    """A page of memories."""

    about: Name | None = None
    limit: limited(50, 1, 200) = 50  # type: ignore[valid-type]


class HistoryQuery(ListQuery):
    """A page of a memory's history."""

    limit: limited(200, 1, 1000) = 200  # type: ignore[valid-type]


def parse(shape: type[S], data: Mapping[str, Any], *, kind: str = "field") -> S:
    """The model of `data`; `kind` is how an unknown name is called. Raises InvalidInput."""
    fault: str | None = None
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        fault = _wording(error.errors(include_url=False)[0], kind)
    raise InvalidInput(fault)


def parse_json(raw: bytes) -> dict[str, Any]:
    """The object in a JSON body; anything else that is JSON counts as an empty one.

    Raises InvalidInput for what is no JSON, for NaN and infinities, and for a doubled name.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, _Doubled):
            raise InvalidInput(f"doubled field: {shown(error.name)}") from None
        raise InvalidInput("the body is not valid JSON") from None
    return value if isinstance(value, dict) else {}


def parse_query(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The query string as a map. Raises InvalidInput for a doubled name."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(f"doubled filter: {shown(name)}")
        found[name] = value
    return found


class _Doubled(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__("doubled name")
        self.name = name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Doubled(name)
            seen.add(name)
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _wording(error: ErrorDetails, kind: str) -> str:
    field = _path(error["loc"]) or "the body"
    if error["type"] == "extra_forbidden":
        return f"unknown {kind}: {field}"
    if error["type"] == "missing" or (error["type"].endswith("_type") and error["input"] is None):
        return f"{field} is required"
    if error["type"] == "said":
        return f"{field} {error['msg']}"
    return f"{field} is invalid"


def _path(parts: tuple[int | str, ...]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{shown(part)}"
    return path.removeprefix(".")[: MAX_SHOWN * 2]


def shown(text: str) -> str:
    """A name from outside in a form that is safe to repeat."""
    return "".join(one if one.isprintable() else "?" for one in text[:MAX_SHOWN])


def write_cursor(created_at: datetime, memory_id: MemoryId) -> str:
    """The place behind a row of a page, opaque to callers."""
    micros = (created_at - EARLIEST) // timedelta(microseconds=1)
    raw = micros.to_bytes(8, "big", signed=True) + memory_id
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def read_cursor(text: str | None) -> tuple[datetime, MemoryId] | None:
    """The place that `write_cursor` wrote. Raises InvalidInput."""
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        if len(raw) != 24:
            raise ValueError("length")
        micros = int.from_bytes(raw[:8], "big", signed=True)
        return EARLIEST + timedelta(microseconds=micros), raw[8:]
    except (binascii.Error, ValueError, OverflowError):
        raise InvalidInput("cursor is invalid") from None


def read_number(text: str | None) -> int | None:
    """The place behind a numbered row. Raises InvalidInput."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput("cursor is invalid")
    return int(text)
