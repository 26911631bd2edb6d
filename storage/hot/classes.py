"""Which residents no reader can tell apart, by number, so that whole arrays are judged at once.

A node has as many access classes as agents, projects and states occur together: few beside its
memories. A reader judges each class once (`Verdicts`), and a search then looks up one byte for
each neighbour instead of asking about each record. Not thread-safe: the graph's lock guards it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.model import Resident
from storage.visibility import AccessClass

HIDDEN: Final = 0
SEEN: Final = 1
UNTIL: Final = 2
"""Seen as long as it has not expired."""

SPARE: Final = 1_024
_EPOCHS: Final = itertools.count(1)


class Classes:
    """The classes that residents have now; a number is used again when nobody has it."""

    def __init__(self) -> None:
        self.epoch = next(_EPOCHS)
        self.entered: list[int] = []
        """Numbers in the order in which they got their class, since the epoch began."""
        self.by_number: list[AccessClass | None] = []
        self._numbers: dict[AccessClass, int] = {}
        self._members: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def enter(self, resident: Resident) -> int:
        """The number of a resident's class, which has one member more."""
        of = AccessClass.of(resident)
        number = self._numbers.get(of)
        if number is None:
            number = self._assign(of)
        self._members[number] += 1
        return number

    def leave(self, number: int) -> None:
        """One member less."""
        self._members[number] -= 1
        if not self._members[number]:
            of = self.by_number[number]
            assert of is not None
            del self._numbers[of]
            self.by_number[number] = None
            self._free.append(number)

    def _assign(self, of: AccessClass) -> int:
        if self._free:
            number = self._free.pop()
            self.by_number[number] = of
        else:
            number = len(self.by_number)
            self.by_number.append(of)
            self._members.append(0)
        self._numbers[of] = number
        self.entered.append(number)
        if len(self.entered) > SPARE + 4 * len(self.by_number):
            self.epoch = next(_EPOCHS)
            self.entered = list(self._numbers.values())
        return number


class Verdicts:
    """What one reader may see, by class; follows the classes of a graph as they come and go.

    `judge` tells whether a resident that does not expire is seen.
    """

    def __init__(self, judge: Callable[[Resident], bool]) -> None:
        self._judge = judge
        self._epoch = 0
        self._known = 0
        self.some_expire = False
        """Whether any verdict may be UNTIL."""
        self._verdicts: NDArray[np.int8] = np.zeros(0, np.int8)

    def of(self, classes: Classes) -> NDArray[np.int8]:
        """HIDDEN, SEEN or UNTIL by the number of the class."""
        if self._epoch != classes.epoch:
            self._epoch, self._known = classes.epoch, 0
        if self._known < len(classes.entered):
            if len(self._verdicts) < len(classes.by_number):
                larger = np.zeros(2 * len(classes.by_number), np.int8)
                larger[: len(self._verdicts)] = self._verdicts
                self._verdicts = larger
            for number in classes.entered[self._known :]:
                of = classes.by_number[number]
                if of is not None:
                    seen = self._judge(of.unexpired())
                    self._verdicts[number] = (UNTIL if of.expires else SEEN) if seen else HIDDEN
                    self.some_expire |= of.expires and seen
            self._known = len(classes.entered)
        return self._verdicts
