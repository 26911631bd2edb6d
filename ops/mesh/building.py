"""From three empty folders to one mesh: processes, project, members, agents."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from ops.mesh.nodes import Node
from ops.mesh.stage import PROJECT, Stage, mesh_of

LINK_S = 30.0


def build(stage: Stage) -> None:
    """Start the nodes, make them one project, and give each its agents."""
    with stage.phase("Three nodes start, each with a PostgreSQL of its own"):
        seconds = stage.each(lambda node: node.start())
        for node, taken in zip(stage.nodes, seconds, strict=True):
            stage.say(
                f"node [bold]{node.name}[/] {node.node_id[:8]}  {node.api.url}"
                f"  peers {node.address}  ready in {taken:.1f} s"
            )
        stage.findings.note("start.cold_seconds", round(max(seconds), 2))
    with stage.phase("They become one project over mutual TLS"):
        found(stage)
        stage.wait(lambda: linked(stage), LINK_S, "links between all nodes")
        stage.say("A founded it and admitted B and C by certificate; all links are up")
    with stage.phase(f"{len(stage.writers)} agents move in"):
        stage.each(lambda node: settle(stage, node))
        for node in stage.nodes:
            names = ", ".join(writer.name for writer in stage.writers_of(node))
            stage.say(f"node [bold]{node.name}[/]  {escape(names)}")
        stage.findings.note("agents", len(stage.writers))


def found(stage: Stage) -> None:
    """A founds the project and admits the others, who join; a new mesh takes a restart."""
    first, *others = stage.nodes
    first.api.post("/api/projects", {"name": PROJECT})
    for node in others:
        described = node.api.get("/api/node")
        body = {"certificate_pem": described["certificate_pem"], "address": node.address}
        invitation = first.api.post(f"/api/projects/{PROJECT}/admit", body)["invitation"]
        if not join(node, invitation):
            node.stop()
            node.start()


def join(node: Node, invitation: dict[str, Any]) -> bool:
    """Hand an invitation over; False when it takes effect at the next start."""
    answer = node.api.post("/api/projects/join", {"invitation": invitation})
    return not answer.get("pending")


def linked(stage: Stage) -> bool:
    """Whether each node has a live link to every other one."""
    others = len(stage.nodes) - 1
    return all(mesh_of(node)["linked"] >= others for node in stage.nodes)


def settle(stage: Stage, node: Node) -> None:
    """Make a node's agents: what they care about, and that they read what others share."""
    for writer in stage.writers_of(node):
        agent = node.api.post(
            "/api/agents",
            {
                "name": writer.name,
                "description": writer.description,
                "read_policy": "shared",
                "project": PROJECT,
            },
        )
        node.agent_ids[writer.name] = agent["id"]
