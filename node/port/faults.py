"""What is wrong with a request that the node would not even read, in words of its caller."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from node.port import messages

_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]")


def told(request: messages.Asked, error: msgspec.ValidationError) -> str:
    """The error with the name of the field instead of its place in the message."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None  # the pattern takes any text
    what, path = found["what"], found["path"] or ""
    here: object = request
    names: list[str] = []
    for step in _STEP.findall(path):
        if isinstance(here, msgspec.Struct):
            tagged = int(here.__struct_config__.tag is not None)
            name = here.__struct_fields__[int(step) - tagged]
            here = getattr(here, name)
            if not isinstance(here, messages.Draft):
                names.append(name)
        elif step.isdigit() and isinstance(here, tuple):
            here = here[int(step)]
            names.append(step)
        else:
            break
    return f"{'.'.join(names)}: {what}" if names else what
