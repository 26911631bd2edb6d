"""Routes that compare the parts of a node with each other."""

from __future__ import annotations

from node.http.routing import Call, Reply, Routes
from node.http.shapes import Shape
from node.http.tokens import Permission
from node.memory.audit import audit_graph

routes = Routes()


class AuditBody(Shape):
    """Whether to mend what differs."""

    repair: bool = False


@routes.add("POST", "/api/audit/graph", need=Permission.ADMIN, shape=AuditBody, operation="admin")
async def graph(call: Call, given: AuditBody) -> Reply:
    """Compare the hot graph with the rows, and repair it if asked to."""
    report = await audit_graph(call.services.memory, repair=given.repair)
    return Reply(report.as_dict())
