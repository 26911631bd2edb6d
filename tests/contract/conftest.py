"""The mesh fixture, for the real side of the contracts."""

from tests.support.mesh import town

__all__ = ["town"]
