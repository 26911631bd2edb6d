"""What a run found: figures, and checks that compare them with bars. No IO.

A check knows where to look when it fails, because whoever reads the table did not write the code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Relation = Literal[">=", "<=", "<", ">", "=="]
RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One claim: `name` is its dotted key in the report, `what` says it in words."""

    name: str
    what: str
    value: float | bool
    relation: Relation
    bar: float | bool
    look_at: str = ""

    @property
    def ok(self) -> bool:
        """Whether the value reaches the bar; a value that is no number never does."""
        value = self.value
        if isinstance(value, float) and value != value:
            return False
        return bool(RELATIONS[self.relation](value, self.bar))

    @property
    def bar_text(self) -> str:
        """The bar as people read it."""
        return f"{self.relation} {shown(self.bar)}"

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "name": self.name,
            "what": self.what,
            "value": self.value,
            "bar": self.bar_text,
            "ok": self.ok,
            "look_at": self.look_at,
        }


@dataclass(slots=True)
class Findings:
    """Everything a run found, in the order in which it was found."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    failure: str = ""

    def note(self, name: str, value: Any) -> None:
        """A figure under a dotted name, without a bar."""
        place = self.figures
        *above, last = name.split(".")
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value

    def check(
        self,
        name: str,
        what: str,
        value: float | bool,
        relation: Relation,
        bar: float | bool,
        look_at: str = "",
    ) -> bool:
        """A figure with a bar; whether it holds."""
        self.note(name, value)
        made = Check(name, what, value, relation, bar, look_at)
        self.checks.append(made)
        return made.ok

    @property
    def ok(self) -> bool:
        """Whether the run came to its end and every check holds."""
        return not self.failure and bool(self.checks) and all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The report for machines: the figures, nested by their names, and all checks."""
        return {
            **self.figures,
            "ok": self.ok,
            "failure": self.failure,
            "checks": [check.as_dict() for check in self.checks],
        }


def shown(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def share(part: int, whole: int) -> float:
    """`part` of `whole`, rounded to four places; not a number when there is no whole."""
    return round(part / whole, 4) if whole else float("nan")
