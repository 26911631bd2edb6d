"""Reads one YAML file as plain data, within limits, before anything is made of it.

Only maps with text keys, lists and scalars come out. Aliases are refused, since they serve
expansion bombs more often than configuration; so are duplicate keys, since the parser would
silently keep the last. Errors give line and column and never quote the file, which holds secrets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from yaml.events import AliasEvent, Event
from yaml.nodes import MappingNode, Node, ScalarNode

MAX_FILE_BYTES: Final = 1 << 18
MAX_DEPTH: Final = 20


class YamlProblem(Exception):
    """The file cannot be used; the text says where and why."""


def read_yaml_map(path: Path) -> dict[str, Any]:
    """The top-level map of the file; an empty file is an empty map. Raises YamlProblem."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise YamlProblem(f"cannot be read ({error.strerror})") from error
    if len(data) > MAX_FILE_BYTES:
        raise YamlProblem(f"is larger than {MAX_FILE_BYTES} bytes")
    return parse_yaml_map(data)


def parse_yaml_map(data: bytes) -> dict[str, Any]:
    """`read_yaml_map` for bytes already read."""
    try:
        value = yaml.load(data.decode("utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise YamlProblem("is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        raise YamlProblem(_where(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlProblem("is not valid YAML") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise YamlProblem("must be a map at the top level")
    return value


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event: Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, AliasEvent):
            raise _refuse("aliases are not allowed", event.start_mark)
        if self._depth >= MAX_DEPTH:
            raise _refuse("nested too deeply", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise _refuse("a key must be text", key.start_mark)
            if key.value in seen:
                raise _refuse(f"key {key.value[:64]} appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Refused(yaml.MarkedYAMLError):
    """A limit of this module; its text quotes no value."""


def _refuse(problem: str, mark: Any) -> _Refused:
    return _Refused(problem=problem, problem_mark=mark)


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}{error.problem if isinstance(error, _Refused) else 'is not valid YAML'}"
