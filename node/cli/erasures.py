"""Verbs of provable forgetting: erase, follow, export the proof, verify it anywhere.

Exit codes: 0 complete, 2 something is pending, 3 refused, 4 bad arguments, 6 not found, 7 the
node cannot be reached; `verify` has those of the offline verifier, 0 to 5.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import httpx

from node.cli.client import Node, open_node, print_json, read_json, refusal
from node.cli.group import ERASURE_USAGE, F, Failure, Verbs, json_option, reaching
from node.cli.show import facts, safe, table

PENDING: Final = 2
REFUSED: Final = 3
NOT_FOUND: Final = 6
POLL_S: Final = 0.5
MAX_POLL_S: Final = 5.0
CERTIFIED: Final = frozenset({"certified", "closed"})
ANSWERED: Final = frozenset({"absent", "planned"})
BASES: Final = (*(f"gdpr-17-1-{letter}" for letter in "abcdef"), "contract", "retention", "other")
EXTRAS: Final = ("receipts", "closure", "addenda", "proof", "head", "trust")
_EXITS: Final = {
    400: ERASURE_USAGE,
    401: REFUSED,
    403: REFUSED,
    404: NOT_FOUND,
    409: REFUSED,
    410: REFUSED,
    422: ERASURE_USAGE,
}


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer, or a Failure with the exit code of its refusal."""
    if answer.status_code < 400:
        return answer
    raise Failure(refusal(answer), _EXITS.get(answer.status_code, 1))


@click.group(cls=Verbs)
def erase() -> None:
    """Remove everything of an agent or a project, here and at every peer, with a certificate.

    \b
    Exit codes:
      0  certified, nothing pending      2  certified, peers or backups pending
      3  refused                         4  bad arguments
      6  not found                       7  the node cannot be reached
    """


def _erasing(kind: str) -> click.Command:
    @erase.command(kind)
    @click.argument("scope", metavar="NAME_OR_ID")
    @click.option("--basis", type=click.Choice(BASES), help="Why, for the certificate.")
    @click.option("--request-id", metavar="TEXT", help="Makes a repeat join this request.")
    @click.option("--dry-run", is_flag=True, help="Only count what would go.")
    @click.option("--assert-absent", is_flag=True, help="For an unknown scope: state it signed.")
    @click.option(
        "--wait",
        type=click.Choice(["certified", "closed"]),
        default="certified",
        show_default=True,
        help="Closed: every peer has answered.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=600.0,
        show_default=True,
        help="Seconds to wait.",
    )
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @json_option
    @reaching
    def verb(
        scope: str,
        basis: str | None,
        request_id: str | None,
        dry_run: bool,
        assert_absent: bool,
        wait: str,
        timeout: float,
        yes: bool,
        as_json: bool,
        path: str | None,
        url: str | None,
        token: str | None,
    ) -> None:
        node = open_node(path, url, token)
        if not dry_run:
            _confirm(kind, scope, yes)
        body: dict[str, Any] = {"scope": {"kind": kind, "id": scope}}
        given = {"basis": basis, "request_id": request_id}
        body |= {name: value for name, value in given.items() if value is not None}
        body |= {"dry_run": True} if dry_run else {}
        body |= {"assert_absent": True} if assert_absent else {}
        told = read_json(checked(node.ask("POST", "/api/erasures", json=body)))
        if not dry_run and told.get("erasure_id"):
            told = _follow(node, told, wait, timeout, quiet=as_json)
        _tell(told, as_json)
        if not dry_run:
            click.get_current_context().exit(exit_code(told))

    verb.help = f"""Erase {kind} NAME_OR_ID for ever.

    Asks for the scope to be typed again on a terminal, and needs --yes elsewhere. Asking twice
    joins the erasure that is there.

    \b
    Examples:
      mnemesh erase {kind} bob --dry-run
      mnemesh erase {kind} bob --basis gdpr-17-1-b --wait closed
    """
    return verb


for _kind in ("agent", "project"):
    _erasing(_kind)


def _confirm(kind: str, scope: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure("--yes is needed where nobody can be asked", ERASURE_USAGE)
    typed = click.prompt(f"This removes {kind} {scope} for ever. Type {scope} to go on", err=True)
    if typed != scope:
        raise Failure("that is another name; nothing was done", ERASURE_USAGE)


def _follow(
    node: Node, told: dict[str, Any], wait: str, timeout: float, *, quiet: bool
) -> dict[str, Any]:
    """Ask for the state until it is reached; the last answer in any case."""
    deadline = time.monotonic() + timeout
    pause, shown = POLL_S, ""
    while not _reached(told, wait) and time.monotonic() < deadline:
        if not quiet and told["state"] != shown:
            shown = told["state"]
            click.echo(f"{safe(shown)} ...", err=True)
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, MAX_POLL_S)
        told = read_json(checked(node.ask("GET", f"/api/erasures/{told['erasure_id']}")))
    return told


def _reached(told: dict[str, Any], wait: str) -> bool:
    return told["state"] == "closed" or (wait == "certified" and told["state"] in CERTIFIED)


def exit_code(told: dict[str, Any]) -> int:
    """0 when nothing is open, else 2."""
    if told["state"] == "closed" or told["state"] in ANSWERED:
        return 0
    receipts = told.get("receipts") or {}
    settled = receipts.get("have", 0) >= receipts.get("of", 0)
    return 0 if told["state"] in CERTIFIED and settled else PENDING


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    receipts = told.get("receipts") or {}
    facts(
        [
            ("erasure", told["erasure_id"]),
            ("state", told["state"]),
            *_counts(told),
            ("receipts", f"{receipts.get('have', 0)} of {receipts.get('of', 0)}"),
            *((f"node {one['node_id']}", one["status"]) for one in told.get("recipients") or ()),
            ("addenda", len(told.get("addenda") or ())),
            ("due by", told.get("due_by")),
        ]
    )
    if told.get("certificate"):
        click.echo(
            f"evidence: mnemesh certificate {told['erasure_id']} -o FOLDER --with ...", err=True
        )


def _counts(told: dict[str, Any]) -> list[tuple[str, object]]:
    """What the certificate, or the plan of a dry run, counts."""
    if told.get("plan"):
        return [(f"would go from {tier}", n) for tier, n in told["plan"]["tiers"].items() if n]
    if not told.get("certificate"):
        return []
    try:
        tiers = json.loads(base64.b64decode(told["certificate"]["payload"]))["predicate"]["tiers"]
        sums = {key: sum(one[key] for one in tiers.values()) for key in ("n", "retained")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure("the node's certificate cannot be read") from error
    removed_now = told.get("removed_now") or 0
    again = [("removed again", removed_now)] if removed_now else []
    return [("unreachable now", sums["n"]), ("retained", sums["retained"]), *again]


@click.group(cls=Verbs)
def erasure() -> None:
    """Follow erasures and their documents."""


@erasure.command("status")
@click.argument("erasure_id", metavar="ID")
@json_option
@reaching
def erasure_status(
    erasure_id: str, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Show state, recipients and documents of one erasure."""
    node = open_node(path, url, token)
    told = read_json(checked(node.ask("GET", f"/api/erasures/{_id(erasure_id)}")))
    _tell(told, as_json)
    click.get_current_context().exit(exit_code(told))


@erasure.command("list")
@click.option("--state", metavar="STATE", help="Only those in this state.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")
@json_option
@reaching
def erasure_list(
    state: str | None,
    cursor: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """List the erasures of this node."""
    node = open_node(path, url, token)
    asked = {"state": state, "cursor": cursor}
    filters = {name: value for name, value in asked.items() if value is not None}
    told = read_json(checked(node.ask("GET", "/api/erasures", params=filters)))
    if as_json:
        print_json(told)
        return
    heads = ("erasure_id", "state", "kind", "requested_at", "due_by")
    table(heads, [tuple(one.get(head) for head in heads) for one in told["erasures"]])
    if told.get("nextCursor"):
        click.echo(f"more: mnemesh erasure list --cursor {told['nextCursor']}")


@erasure.command("reopen")
@click.argument("kind", type=click.Choice(["agent", "project"]))
@click.argument("scope", metavar="ID")
@reaching
def erasure_reopen(
    kind: str, scope: str, path: str | None, url: str | None, token: str | None
) -> None:
    """Let an erased agent or project write again, in a new epoch."""
    node = open_node(path, url, token)
    body = {"scope": {"kind": kind, "id": scope}}
    checked(node.ask("POST", "/api/scopes/reopen", json=body))
    click.echo(f"reopened  {kind} {scope}")


@click.command()
@click.argument("erasure_id", metavar="ID")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PLACE",
    help="A folder, or a .json file for the certificate alone.",
)
@click.option("--with", "extras", default="", metavar="LIST", help=f"Also: {','.join(EXTRAS)}.")
@reaching
def certificate(
    erasure_id: str,
    output: Path,
    extras: str,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Write the certificate of an erasure, and its other documents, as files.

    \b
    Example:
      mnemesh certificate er_1f... -o proof/ --with receipts,closure,addenda,proof,head,trust
      mnemesh verify proof/certificate.json --trust proof/trust.json --receipts proof/receipts
    """
    wanted = [one.strip() for one in extras.split(",") if one.strip()]
    unknown = [one for one in wanted if one not in EXTRAS]
    if unknown:
        raise Failure(f"--with: unknown {unknown[0]}; known are {', '.join(EXTRAS)}", ERASURE_USAGE)
    node = open_node(path, url, token)
    base = f"/api/erasures/{_id(erasure_id)}"
    envelope = checked(node.ask("GET", f"{base}/certificate")).content
    try:
        if output.suffix == ".json":
            if wanted:
                raise Failure("--with needs a folder as PLACE", ERASURE_USAGE)
            output.write_bytes(envelope)
            click.echo(f"wrote  {output}")
            return
        for file, data in (
            ("certificate.json", envelope),
            *(pair for one in wanted for pair in _documents(node, base, one)),
        ):
            target = output / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            click.echo(f"wrote  {target}")
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from error


def _documents(node: Node, base: str, kind: str) -> list[tuple[str, bytes]]:
    """Files of one kind of document; none, with a note, while the node has none."""
    answer = node.ask("GET", f"{base}/{kind}")
    if answer.status_code == 404:
        click.echo(f"none yet  {kind}", err=True)
        return []
    checked(answer)
    if kind in ("closure", "proof", "head", "trust"):
        return [(f"{kind}.json", answer.content)]
    told = read_json(answer)
    return [
        (f"{kind}/{name}-{number:04d}.json", json.dumps(document).encode())
        for name in (kind, "notices")
        for number, document in enumerate(told.get(name, ()), 1)
    ]


def _file(*names: str, needed: bool = False, text: str) -> Callable[[F], F]:
    def add(verb: F) -> F:
        kind = click.Path(path_type=Path)
        return click.option(*names, type=kind, required=needed, metavar="FILE", help=text)(verb)

    return add


@click.command()
@click.argument("cert", type=click.Path(path_type=Path), metavar="CERTIFICATE")
@_file("--trust", needed=True, text="Keys that you trust, got by another way.")
@_file("--receipts", text="Receipts and notices: a folder, or one file.")
@_file("--closure", text="The closure.")
@_file("--addenda", text="Addenda: a folder, or one file.")
@_file("--proof", text="Inclusion in the ledger.")
@_file("--head", text="The signed head of the ledger.")
@_file("--opening", text="An opened leaf.")
@click.option("--require-closed", is_flag=True, help="A missing closure is an error.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def verify(
    cert: Path,
    trust: Path,
    receipts: Path | None,
    closure: Path | None,
    addenda: Path | None,
    proof: Path | None,
    head: Path | None,
    opening: Path | None,
    require_closed: bool,
    as_json: bool,
) -> None:
    """Check an erasure's documents without any node, database or network.

    \b
    Exit codes:
      0  valid and complete              1  a signature, count or proof is wrong
      2  valid, something is pending     3  a key is unknown, revoked or out of its time
      4  malformed                       5  the ledger is inconsistent
    """
    from erasure.verify import verify_files

    report = verify_files(
        cert, trust, receipts, closure, addenda, proof, head, opening, require_closed
    )
    if as_json:
        print_json(report.as_json())
    else:
        for line in report.lines():
            click.echo(line)
    click.get_current_context().exit(report.exit_code)


erasure.add_command(certificate)
erasure.add_command(verify)


def _id(text: str) -> str:
    if not text.isascii() or not all(one.isalnum() or one == "_" for one in text):
        raise Failure("ID is not the id of an erasure", ERASURE_USAGE)
    return text


VERBS = (erase, erasure, certificate, verify)
