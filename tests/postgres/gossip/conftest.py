"""The nodes that every test of running meshes is given."""

from tests.support.mesh import town

__all__ = ["town"]
