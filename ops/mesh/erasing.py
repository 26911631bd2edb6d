"""The main promise: an agent is erased everywhere, and strangers can check it.

Everything is done as an officer would: by the commands `erase`, `certificate` and `verify`, each a
process of its own. Then the run looks for residue itself: through every read path, in every table
and in every file.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.mesh import evidence
from ops.mesh.api import ApiError
from ops.mesh.asking import readable
from ops.mesh.evidence import EvidenceFault, Trace
from ops.mesh.feed import Written
from ops.mesh.nodes import ROOT, Node
from ops.mesh.stage import OWN_AGENT, Stage

ERASE_S: Final = 120.0
PROBES: Final = 15
NEAR: Final = 0.999
TOLERATED: Final = frozenset({"physical", "backup", "closure", "witness"})
"""Open matters that only time, an operator or a further witness can settle."""
DONE: Final = (0, 2)
"""Exit codes of `erase`: complete, or certified with something pending."""
DOCUMENTS: Final = "receipts,closure,addenda,proof,head,trust"
MARKS: Final = ("tombstones", "outbox", "holders")
"""Tables that keep bare ids on purpose, so that no late copy comes back: of agents too."""
MEMORY_MARKS: Final = (*MARKS, "deliveries")
"""The same for ids of memories: what was sent to which peer. Texts may stand in no table."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What the first erase answered."""

    erasure_id: str
    certificate: bytes
    statement: dict[str, Any]
    state: str

    @property
    def removed(self) -> int:
        """Records that the certificate says were removed, over all tiers."""
        return sum(int(tier["removed"]) for tier in self.statement["tiers"].values())


def erase(stage: Stage, rng: random.Random) -> None:
    """Erase one agent of A, verify the evidence offline, erase again, look for residue."""
    home = stage.node("A")
    writer = subject(stage, home)
    agent_id = home.agent_ids[writer]
    own = stage.ledger.of(agent=writer)
    probes = rng.sample(own, min(PROBES, len(own)))
    kept = evidence.vectors(home, [evidence.raw(each.id) for each in probes])
    with stage.phase(f"A erases its agent {writer!r} on all nodes"):
        copies = sum(rows_of(node, agent_id) for node in stage.nodes)
        begun = time.monotonic()
        first = run_erase(home, agent_id)
        stage.wait(
            lambda: sum(rows_of(node, agent_id) for node in stage.nodes) == 0,
            ERASE_S,
            "the end of all copies of the erased agent",
        )
        others = len(stage.nodes) - 1
        stage.wait(
            lambda: receipts(home, first.erasure_id) >= others, ERASE_S, "receipts of both others"
        )
        seconds = time.monotonic() - begun
        stage.ledger.drop([each.id for each in own])
        stage.findings.note("erase.seconds", round(seconds, 2))
        stage.findings.note("erase.memories", len(own))
        stage.findings.note("erase.copies", copies)
        stage.findings.check(
            "erase.removed",
            "records that the certificate of A counts as removed, at least the agent's memories",
            first.removed,
            ">=",
            len(own),
            f"mnemesh erasure status {first.erasure_id} --path {home.workspace}",
        )
        stage.findings.check(
            "erase.receipts",
            "other nodes whose signed receipt is here",
            receipts(home, first.erasure_id),
            "==",
            others,
            "tables outbox and erasure_recipients of A",
        )
        stage.say(
            f"{len(own)} memories, {copies} rows of them on three nodes; A removed "
            f"{first.removed} records in {len(first.statement['tiers'])} tiers"
        )
        stage.say(f"certificate {first.erasure_id}; all done and signed in {seconds:.1f} s")
    with stage.phase("Another process verifies the evidence, with files alone"):
        verify(stage, home, first.erasure_id)
    with stage.phase("A second erase, and a wide search for residue"):
        again(stage, home, agent_id, first)
        residue(stage, agent_id, own, probes, list(kept.values()))


def subject(stage: Stage, home: Node) -> str:
    """The agent to erase: the one of `home` whose memories others hold most."""
    held: set[bytes] = set()
    for node in stage.nodes:
        if node is not home:
            held |= evidence.held(node)
    return max(
        (writer.name for writer in stage.writers_of(home)),
        key=lambda name: sum(evidence.raw(each.id) in held for each in stage.ledger.of(agent=name)),
    )


def rows_of(node: Node, agent_id: str) -> int:
    """Memories of an agent on a node."""
    sql = "SELECT count(*) FROM memories WHERE agent_id::bytea = $1"
    return int(evidence.query(node, sql, evidence.raw(agent_id))[0][0])


def run_erase(node: Node, agent_id: str) -> Erased:
    """`mnemesh erase agent`. Raises EvidenceFault when it brings no certificate."""
    wanted = ("erase", "agent", agent_id, "--yes", "--json", "--wait", "closed", "--timeout", "60")
    done = node.command(*wanted, timeout=ERASE_S)
    if done.returncode not in DONE:
        raise EvidenceFault(f"mnemesh erase ended with {done.returncode}: {last_line(done)}")
    told = json.loads(done.stdout)
    envelope = told.get("certificate")
    if not envelope:
        raise EvidenceFault(f"mnemesh erase brought no certificate, state {told.get('state')}")
    raw = certificate_of(node, told["erasure_id"])
    payload = base64.b64decode(json.loads(raw)["payload"])
    statement = json.loads(payload)
    return Erased(told["erasure_id"], raw, statement.get("predicate", statement), told["state"])


def certificate_of(node: Node, erasure_id: str) -> bytes:
    """The bytes of the signed certificate."""
    return node.api.raw(f"/api/erasures/{erasure_id}/certificate")


def receipts(node: Node, erasure_id: str) -> int:
    """How many other nodes have answered with a receipt."""
    have = node.api.get(f"/api/erasures/{erasure_id}")["receipts"]["have"]
    return int(have)


def verify(stage: Stage, home: Node, erasure_id: str) -> None:
    """Export the evidence, then check it in a process that knows no node."""
    folder = stage.root / "evidence"
    exported = home.command("certificate", erasure_id, "-o", str(folder), "--with", DOCUMENTS)
    if exported.returncode != 0:
        raise EvidenceFault(f"mnemesh certificate ended with {exported.returncode}")
    report, code = offline(folder)
    pending = {item["kind"] for item in report.get("pending", [])}
    verified = code == 0 or (code == 2 and pending <= TOLERATED)
    stage.findings.note("erase.verify_exit", code)
    stage.findings.note("erase.pending", sorted(pending))
    stage.findings.check(
        "erase.verified",
        "certificate and receipts hold; open at most what only time or an operator can settle",
        verified,
        "==",
        True,
        f"mnemesh verify {folder}/certificate.json; causes: {report.get('causes')}",
    )
    spoilt = tampered(folder)
    stage.findings.check(
        "erase.tampering_found",
        "a certificate with one changed byte is refused",
        spoilt not in DONE,
        "==",
        True,
        "erasure/verify.py",
    )
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))
    stage.say(f"files: {', '.join(files)}")
    stage.say(
        f"verify ends with {code}"
        + (f", open: {', '.join(sorted(pending))}" if pending else "")
        + f"; with one changed byte it ends with {spoilt}"
    )


def offline(folder: Path, certificate: str = "certificate.json") -> tuple[dict[str, Any], int]:
    """The report and exit code of `mnemesh verify` in a process without a workspace."""
    command = [sys.executable, "-m", "node.cli.main", "verify", str(folder / certificate), "--json"]
    for option, name in (
        ("--trust", "trust.json"),
        ("--receipts", "receipts"),
        ("--closure", "closure.json"),
        ("--addenda", "addenda"),
        ("--proof", "proof.json"),
        ("--head", "head.json"),
    ):
        if (folder / name).exists():
            command += [option, str(folder / name)]
    with tempfile.TemporaryDirectory(prefix="mnm-v-") as nowhere:
        done = subprocess.run(
            command,
            cwd=nowhere,
            env={"PATH": "/usr/bin:/bin", "HOME": nowhere, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    try:
        report = json.loads(done.stdout)
    except ValueError as error:
        raise EvidenceFault(f"mnemesh verify said no JSON: {last_line(done)}") from error
    return (report if isinstance(report, dict) else {}), done.returncode


def tampered(folder: Path) -> int:
    """The verifier's exit code for a certificate in which one number was changed."""
    envelope = json.loads((folder / "certificate.json").read_bytes())
    payload = bytearray(base64.b64decode(envelope["payload"]))
    place = payload.index(b'"removed":') + len(b'"removed":')
    payload[place] = ord("7") if payload[place] != ord("7") else ord("8")
    envelope["payload"] = base64.b64encode(bytes(payload)).decode("ascii")
    (folder / "tampered.json").write_text(json.dumps(envelope), encoding="ascii")
    _, code = offline(folder, "tampered.json")
    (folder / "tampered.json").unlink()
    return code


def again(stage: Stage, home: Node, agent_id: str, first: Erased) -> None:
    """The same request once more: the same bytes, and nothing removed."""
    wanted = ("erase", "agent", agent_id, "--yes", "--json", "--wait", "certified")
    done = home.command(*wanted, timeout=ERASE_S)
    if done.returncode not in DONE:
        raise EvidenceFault(f"the second erase ended with {done.returncode}: {last_line(done)}")
    told = json.loads(done.stdout)
    same = certificate_of(home, told["erasure_id"]) == first.certificate
    stage.findings.check(
        "erase.second_removed",
        "records that a second erase still found",
        told["removed_now"],
        "==",
        0,
        "erasure/supplement.py",
    )
    stage.findings.check(
        "erase.second_same_certificate",
        "a second erase answers with the same certificate, byte for byte",
        same and told["erasure_id"] == first.erasure_id,
        "==",
        True,
        "erasure/requests.py",
    )
    stage.say(
        f"the second erase removed {told['removed_now']} records and answered with "
        f"{'the same' if same else 'ANOTHER'} certificate"
    )


def residue(
    stage: Stage,
    agent_id: str,
    own: Sequence[Written],
    probes: Sequence[Written],
    vectors: Sequence[Sequence[float]],
) -> None:
    """Look for the erased agent in answers, tables and files of all nodes."""
    home = stage.node("A")
    raw = evidence.raw(agent_id)
    ids = {each.id for each in own}
    gone = [evidence.raw(each.id) for each in probes]
    texts = stage.ledger.telling(probes)
    traces: list[Trace] = []
    for node in stage.nodes:
        count = by_vector(node, ids, vectors) + listed(node, ids)
        traces += [Trace(node.name, "answers", count)] if count else []
        traces += evidence.rows_with(node, [], texts)
        traces += evidence.rows_with(node, [raw], beside=MARKS)
        traces += evidence.rows_with(node, gone, beside=MEMORY_MARKS)
        traces += evidence.files_with(node, [raw], texts)
    answered = readable(stage.nodes, probes)
    traces += [Trace("all", "answers by id and text", answered)] if answered else []
    refused = writes_refused(home, agent_id)
    stage.findings.note("erase.traces", [str(trace) for trace in traces])
    stage.findings.check(
        "erase.residue",
        "traces of the erased agent in answers, tables and files of all nodes",
        sum(trace.count for trace in traces),
        "==",
        0,
        "; ".join(map(str, traces)),
    )
    stage.findings.check(
        "erase.writes_refused",
        "a write for the erased agent is refused",
        refused,
        "==",
        True,
        "storage/gate.py",
    )
    found = ", ".join(map(str, traces)) or "nothing"
    stage.say(
        "asked by id, in their words, by vector and in lists; read every table and every file "
        f"but PostgreSQL's own: found {found}"
    )
    stage.say(f"bare ids stay in {', '.join(MEMORY_MARKS)}, so that late copies are refused")


def by_vector(node: Node, ids: set[str], vectors: Sequence[Sequence[float]]) -> int:
    """Hits of erased memories for the vectors that they had."""
    hits = [hit for vector in vectors for hit in node.api.recall(OWN_AGENT, "", 10, vector)]
    return sum(hit["id"] in ids for hit in hits)


def listed(node: Node, ids: set[str]) -> int:
    """Erased memories in the pages of the node's own agent."""
    found, cursor = 0, None
    while True:
        page = node.api.get("/api/memories", agent_id=OWN_AGENT, limit=200, cursor=cursor)
        found += sum(row["id"] in ids for row in page["memories"])
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


def writes_refused(home: Node, agent_id: str) -> bool:
    """Whether the erased agent can no longer write."""
    try:
        home.api.remember(agent_id, None, "Something new from somebody who was erased.")
    except ApiError as error:
        return error.status in (404, 410)
    return False


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last thing that a command said."""
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1][:300] if said else "nothing"
