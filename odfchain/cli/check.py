"""`odfchain verify`: chain, rules, and every byte and row."""

from __future__ import annotations

import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import at_point, on_branch
from odfchain.chain.key_statements import Delegate, KeyHistory, Revocation, Scope, commitment
from odfchain.chain.statements import Problem, create_key_file, parse_did, read_key_file
from odfchain.cli import parameters as cli
from odfchain.cli import screen
from odfchain.cli.context import INTEGRITY_FAULT, UNCHECKED, confirm, open_workspace, say, silence_libraries
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.errors import FaultyDatasetError, OdfchainError, SignatureError, StoreError, UsageError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DidKey, encode_base16
from odfchain.odf.times import Timestamp
from odfchain.query.row_formats import cell_text
from odfchain.storage import fsio
from odfchain.text import counted, human_size
from odfchain.workspace.options import VerifyOptions

if TYPE_CHECKING:
    from odfchain import DatasetId, Workspace
    from odfchain.results import Answer, Evidence, KeptEvidence, ListedAttestation, ProofVerdict, Report


@cli.command("verify")
def verify_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET_AT, metavar="[DATASET[@POINT]]…"),
    checks: dict[str, Any] = cli.keywords(VerifyOptions),
    integrity: bool = cli.option("Compute nothing again (the default)."),
    remote: str | None = cli.option("Verify a dataset at a URL, without a copy in this workspace.", "URL"),
    verbose: bool = cli.option("List all checks, also of datasets without faults.", "-v"),
    output: str = cli.formats("table", "json", "ndjson", "html"),
) -> int:
    """Verify chain, rules, every byte and row, and the signature.

    DATASET@POINT is verified on a branch, up to a block (its number or hash), or up to a time.

    With --replay the queries of derivative datasets are computed again, and have to give the recorded rows.
    No other option starts an engine. With --profiles the signed profiles are computed again.

    With --last N the time does not grow with the chain. Of the blocks before, only those still in force are
    read, by the chain's index. Checks that rest on the index say so.

    All faults are listed with their files. Every check that did not run is listed with the reason. Exit code
    0: clean; 6: faults; 7: no faults, but a check that was asked for could not be made here.
    """
    from odfchain.api.branching import matching_at

    _check_replay(checks, integrity=integrity)
    if not datasets and remote is None:
        raise UsageError(
            "which datasets? name them, or one elsewhere with --remote URL",
            hint="`odfchain verify %` verifies all datasets of the workspace; `odfchain list` names them",
        )
    if datasets and remote is not None:
        raise UsageError("--remote names the dataset: datasets of the workspace are verified on their own")
    with open_workspace() as workspace, TerminalProgress() as progress:
        if remote is not None:
            token = cli.token_for([workspace.sharing.url_of(remote)])
            reports = [workspace.verify_remote(remote, token=token, progress=progress, **checks)]
        else:
            found = [d for text in datasets for d in matching_at(workspace, text)]
            reports = workspace.verify(found, progress=progress, **checks)
    _print_reports(reports, output, verbose=verbose)
    if remote is None and output == "table":
        _tell_of_repair(workspace, reports)
    return _exit_code(reports)


def _tell_of_repair(workspace: Workspace, reports: list[Report]) -> None:
    from odfchain.audit.report import MENDED_BY_COPIES

    for report in reports:
        if not any(fault.check in MENDED_BY_COPIES for fault in report.faults):
            continue
        dataset = workspace[report.alias.partition("@")[0]]
        (place, *_) = (*dataset.aliases("push"), *dataset.aliases("pull"), "URL")
        say(f"`odfchain fsck {dataset.alias}` finds and repairs damaged files; --from {place} names a copy")


def _check_replay(checks: dict[str, Any], *, integrity: bool) -> None:
    if checks.get("replay") and integrity:
        raise UsageError("--integrity and --replay exclude each other")
    if checks.get("replay"):
        silence_libraries()


def _exit_code(reports: list[Report]) -> int:
    verdicts = {report.verdict for report in reports}
    return INTEGRITY_FAULT if "faulty" in verdicts else UNCHECKED if "incomplete" in verdicts else 0


def _print_reports(reports: list[Report], output: str, *, verbose: bool) -> None:
    if output == "table":
        for report in sorted(reports, key=lambda r: not r.faults):
            print_report(report, verbose=verbose)
        return
    documents = [report.to_document() for report in reports]
    if output == "html":
        from odfchain.audit.page import render_page

        screen.echo_page(render_page(documents))
        return
    screen.echo_tree(documents, output)


@cli.command("attest")
def attest_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@POINT]"),
    key_file: Path = cli.option(
        "The file with the auditor's private key (`odfchain key create`).", "--key", required=True
    ),
    report_file: Path | None = cli.option("Write the report here, too.", "--report"),
    faulty: bool = cli.option("Sign the outcome even if there are faults."),
    checks: dict[str, Any] = cli.keywords(
        VerifyOptions, "replay", "recursive", "require_signature", "profiles", "trusted_by", "jobs"
    ),
    integrity: bool = cli.option("Compute nothing again (the default)."),
    output: str = cli.formats("table", "json", "jws"),
) -> int:
    """Verify a dataset and sign the outcome.

    Others can rely on the statement. It names the head, the verdict, the checks, and the digest of the
    report. It is kept with the dataset and travels with it. The file of --report is needed to check it
    against the report. DATASET@POINT is verified on a branch, or up to a block or a time. Exit codes are
    those of verify.
    """
    _check_replay(checks, integrity=integrity)
    with open_workspace() as workspace, TerminalProgress() as progress:
        try:
            done = at_point(workspace, dataset).attest(key_file, faulty=faulty, progress=progress, **checks)
        except FaultyDatasetError as error:
            if output == "table":
                print_report(error.report)
            raise
    if report_file is not None:
        from odfchain.odf.canonical_json import canonical_json

        # the attestation has the digest of these bytes
        fsio.replace_file(report_file, canonical_json(done.document) + b"\n")
    if output == "jws":
        screen.echo(done.text)
    elif output == "json":
        screen.echo_tree({"auditor": str(done.attestation.auditor), **done.attestation.to_json()}, output)
    else:
        print_report(done.report)
        screen.echo(f"attested as {done.report.verdict} by {done.attestation.auditor}")
    return _exit_code([done.report])


@cli.command("attestations")
def attestations_command(
    dataset: str = cli.argument(cli.DATASET),
    file: Any = cli.option(
        "Keep the attestation in this file (- is standard input).", "--add", type=click.File("r")
    ),
    output: str = cli.formats(),
) -> int:
    """List and check the verdicts of auditors on a dataset.

    Anyone can attest anything. An auditor is trusted if the settings name it (audit.trustedAuditors). Exit
    code 6: a line is not a valid attestation of this dataset.
    """
    with open_workspace() as workspace:
        if file is not None:
            workspace[dataset].add_attestation(_read(file))
        found = workspace[dataset].attestations()
    rows = [_attestation_row(item) for item in found]
    columns = ["auditor", "verdict", "block", "time", "checks", "notChecked", "trusted", "status"]
    if output in ("table", "csv"):
        rows = [
            row | {name: " ".join(map(str, row[name] or ())) for name in ("checks", "notChecked")}
            for row in rows
        ]
    screen.print_records(rows, columns, output, right=["block"])
    return INTEGRITY_FAULT if any(item.line.statement is None for item in found) else 0


def _read(file: Any) -> str:
    try:
        return str(file.read(ATTEST.statement_bytes + 2))
    except (UnicodeDecodeError, OSError):
        raise UsageError("the file of --add is not text") from None


def _attestation_row(item: ListedAttestation) -> dict[str, Any]:
    names = ("auditor", "verdict", "block:sequence_number", "head", "time", "checks", "not_checked")
    status = "valid" if item.in_chain else "of a block that is not in this chain"
    if item.line.statement is None:
        status = f"line {item.line.number}: {item.line.message}"
    row = screen.record(item.line.statement, *names, "report", "tool")
    return row | {"trusted": item.trusted, "status": status}


# `odfchain proof`: signed answers to queries are shown and checked.

_FILE = cli.argument(cli.PATH)
_MOST_ROWS = 20


@cli.group("proof")
def proof_command() -> None:
    """Show and check signed answers to queries. `odfchain sql --proof` saves them."""


@cli.command("show", proof_command)
def show_command(file: Path = _FILE, output: str = cli.formats("table", "json")) -> None:
    """Show the content of a signed answer.

    That is the query, the blocks that it reads, the rows, and the signer. Its hashes and its signature are
    checked. `odfchain proof verify` checks the rows. No workspace is needed.
    """
    from odfchain.query.answers import Answer, written

    answer = Answer.of_file(file)
    problem = answer.problem()
    if output == "json":
        parts = {
            "query": answer.query,
            "datasets": answer.input["datasets"],
            "output": answer.output,
            "commitment": answer.commitment,
            "signer": answer.signer,
            "engine": answer.engine,
            "problem": problem,
        }
        screen.echo_json_text(written(parts))  # numbers keep their text
        return
    for line in answer.query.strip().split("\n"):
        screen.echo(f"query    {line}")
    for item in answer.input["datasets"]:
        screen.echo(f"reads    {item['alias']} at {item['blockHash']} ({item['id']})")
    rows = _rows(answer)
    for row in (rows or [])[:_MOST_ROWS]:
        screen.echo(f"row      {row}")
    if rows is None:
        screen.echo("rows     not in the file")
    elif len(rows) > _MOST_ROWS:
        screen.echo(f"         {len(rows) - _MOST_ROWS:,} more")
    screen.echo(f"signed   {answer.signer}{f'; but {problem}' if problem else ''}")
    screen.echo(f"engine   {answer.engine or 'not named'}")


@cli.command("verify", proof_command)
def proof_verify_command(
    file: Path = _FILE,
    remote: str | None = cli.option("Have the node at a URL check it, instead of this workspace.", "URL"),
    output: str = cli.formats("table", "json"),
) -> int:
    """Check a signed answer, and compute it once more.

    Hashes, signature, blocks and rows are checked. Exit code 6: the answer is false. Exit code 7: it cannot
    be checked here, because a dataset, a block or this version of the engine is missing.
    """
    from odfchain import verify_proof
    from odfchain.query.answers import Answer

    answer = Answer.of_file(file)
    if remote is not None:
        from odfchain.query.proofs import ProofVerdict
        from odfchain.storage.locations import PeerUrl
        from odfchain.storage.store import as_transfer_errors

        token = cli.token_for([PeerUrl.parse(remote)])
        with as_transfer_errors(), TerminalProgress().later("Asking the node"):
            verdict = ProofVerdict.of_node(answer, remote, token=token)
    else:
        with open_workspace() as workspace, TerminalProgress().later("Computing the answer again"):
            verdict = verify_proof(answer, workspace)
    if output == "json":
        more = screen.record(verdict, "incomplete", "engine", "datasets", "rows")
        screen.echo_json({"file": str(file), "signer": verdict.signer, **verdict.to_json(), **more})
    else:
        screen.echo(f"{file}: {_sentence(verdict)}", err=not verdict.ok)
    return verdict.exit_code


def _sentence(verdict: ProofVerdict) -> str:
    if (verdict.kind or "").startswith("InvalidRequest::"):
        return verdict.message  # there is no signature to speak of
    signer = verdict.signer
    here = f"{', '.join(verdict.datasets)} {'are' if len(verdict.datasets) > 1 else 'is'} here; "
    return f"signed by {signer[:13]}…{signer[-4:]}; {here if verdict.datasets else ''}{verdict.message}"


def _rows(answer: Answer) -> list[str] | None:
    data = None if answer.output is None else answer.output.get("data")
    # the format with one list for each column
    if isinstance(data, dict):
        return [f"{name} {_line(values)}" for name, values in data.items()]
    if isinstance(data, list):
        return [_line(row) for row in data]
    return None


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_line(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(_line, value)) + "]"
    return "null" if value is None else str(value)


@cli.command("sign", asks=True)
def sign_command(
    dataset: str = cli.argument(cli.DATASET_AT, metavar="DATASET[@BRANCH]"),
    output: str = cli.formats("table", "json"),
) -> None:
    """Sign the head of a dataset anew, with the present time.

    Every commit signs the new head if the dataset's private key is here. So the command is needed only if a
    signature is missing, damaged or too old. The key of a dataset is in the workspace that it was made in.
    """
    from odfchain.errors import ObjectCorruptedError, ObjectNotFoundError, StoreError

    with open_workspace() as workspace:
        found = on_branch(workspace, dataset)
        alias = found.alias
        if found.has_key:
            try:
                before = found.signature()
            except (ObjectNotFoundError, ObjectCorruptedError):
                raise
            except StoreError as error:  # a link or a pipe: signing puts a file in its place
                screen.echo(f"warning: {error.message}; a new signature takes its place", err=True)
            else:
                if before.problem in (Problem.OTHER_HEAD, Problem.NEWER_HEAD):
                    confirm(f"{alias}: {before.message}. Both signatures will show that; sign this head too?")
        signed = found.sign()
    row = {"dataset": found.label, **screen.record(signed, "sequence_number", "head", "time")}
    row["signer"] = str(signed.dataset_id)
    titles = {"dataset": "dataset", "sequenceNumber": "block", "head": "head", "time": "time"}
    _print_values(row, titles, output)


@cli.group("key")
def key_command() -> None:
    """Make keys of auditors, and show keys. A dataset's own key is made with the dataset."""


@cli.command("create", key_command)
def create_command(
    file: Path | None = cli.argument(),
    dataset: str | None = cli.option("Make a key that is to sign DATASET here.", "--for", "DATASET"),
) -> None:
    """Make a new ed25519 key and print its public identity.

    FILE is an unencrypted PEM that only you may read, and the identity is a did:key. Anyone who has the file
    can sign in your name. An existing file is never replaced.

    With --for the key stays in the workspace. It signs once the owner has named it: `odfchain key delegate`.
    """
    if (file is None) is (dataset is None):
        raise UsageError("name either a file, or a dataset with --for")
    if file is not None:
        screen.echo(create_key_file(file).dataset_id.as_did_key())
    else:
        screen.echo(open_workspace()[str(dataset)].new_key())


_KEY_FILE = cli.option("The file of the owner's key; default is the key that is here.", "--key", "FILE")


@cli.command("delegate", key_command)
def delegate_command(
    dataset: str = cli.argument(cli.DATASET),
    to: str = cli.option("The did:key of who may sign.", "KEY", required=True),
    period: float = cli.option("How long it may.", "--for", "TIME", default=f"{ATTEST.delegate_days}d"),
    scope: tuple[str, ...] = cli.option("What it may sign; default is all.", choices=[*map(str, Scope)]),
    key: Path | None = _KEY_FILE,
) -> None:
    """Let another key sign for the owner.

    The dataset's own key can then be kept away from the machine. A pull elsewhere takes what the delegate
    signs as the owner's word.
    """
    named = Delegate.of(parse_did(to), Timestamp.now(), period, scope or tuple(Scope))
    _say_keys(dataset, key, delegates=[named])
    say(f"{named.key} may sign {dataset} until {named.not_after}")


@cli.command("revoke", key_command)
def revoke_command(
    dataset: str = cli.argument(cli.DATASET),
    delegate: str = cli.argument(metavar="KEY"),
    since: Timestamp | None = cli.option("When its word ended; default is now.", "TIME"),
    key: Path | None = _KEY_FILE,
) -> None:
    """End the word of a stolen or lost delegate.

    What it has signed since then is refused. What it signed before stays only for those who had it by then.
    """
    since = since or Timestamp.now()
    _say_keys(dataset, key, revoked=[Revocation(DidKey(parse_did(delegate).public_key), since)])
    say(f"{delegate} may not sign {dataset} since {since}")


@cli.command("succeed", key_command)
def succeed_command(
    dataset: str = cli.argument(cli.DATASET),
    to: str | None = cli.option("Announce this successor, by its did:key.", "KEY"),
    key: Path | None = _KEY_FILE,
) -> None:
    """Announce the successor of a key, or take over.

    With --to only the hash of the successor's key is published, and the first one counts for ever. Keep the
    file of that key elsewhere. When the dataset's own key is stolen or lost, name the file with --key.
    """
    if to is None and key is None:
        raise UsageError("name the successor with --to, or take over with the file of its key: --key")
    said = _say_keys(dataset, key, successor=commitment(parse_did(to)) if to is not None else None)
    say(f"the successor of {said.authority} is announced" if to else f"{said.authority} has taken over")


def _say_keys(name: str, key: Path | None, **said: Any) -> KeyHistory:
    with open_workspace() as workspace:
        return workspace[name].say_keys(read_key_file(key) if key is not None else None, **said)


@cli.command("list", key_command)
def key_list_command(dataset: str = cli.argument(cli.DATASET), output: str = cli.formats()) -> None:
    """List who may sign what, and until when.

    Known witnesses are those that cosigned the head that a key has signed.
    """
    found = open_workspace()[dataset]
    keys, signed, seen = found.keys(), None, ""
    with suppress(OdfchainError):  # a damaged head hides nothing of keys
        signed, seen = found.signature().signer, ", ".join(found.cosigned())
    rows: list[dict[str, Any]] = [
        {"key": str(old), "may": "nothing", "until": str(end), "is": "superseded"}
        for old, end in keys.superseded
    ]
    rows.append({"key": str(keys.authority), "may": "all", "until": None, "is": "owner"})
    for each, ended in keys.delegates:
        row = {"key": str(each.key), "may": ", ".join(each.scopes), "until": str(ended or each.not_after)}
        try:
            keys.judge(each.key, each.scopes[0], Timestamp.now())
            rows.append(row | {"is": "in force"})
        except SignatureError as error:
            rows.append(row | {"is": error.problem})
    rows = [row | {"witnesses": (row["key"] == str(signed) and seen) or None} for row in rows]
    screen.print_records(rows, ["key", "may", "until", "is", "witnesses"], output)
    for problem in keys.problems:
        screen.echo(f"warning: {problem}", err=True)


@cli.command("show", key_command)
def key_show_command(
    what: str = cli.argument(metavar="FILE|DATASET"), output: str = cli.formats("table", "json")
) -> None:
    """Print the public identities of a key file or a dataset.

    Nothing private is printed. An existing file comes before a dataset of the same name. A name with a slash,
    or with the ending .pem, is always a file.
    """
    path = Path(what)
    if path.is_file() or "/" in what or path.suffix == ".pem":
        found, private = read_key_file(path).dataset_id, True
    else:
        with open_workspace() as workspace:
            dataset = workspace[what]
            found, private = dataset.id, dataset.has_key
    row = {"didKey": str(found.as_did_key()), "didOdf": str(found), "privateKeyHere": private}
    titles = {"didKey": "did:key", "didOdf": "did:odf", "privateKeyHere": "private key here"}
    _print_values(row, titles, output)


def _print_values(row: dict[str, Any], titles: dict[str, str], output: str) -> None:
    """One record; for people not a table, because hashes and identities are copied whole."""
    if output != "table":
        screen.print_records([row], [*row], output)
        return
    for name, title in titles.items():
        screen.echo(f"{title:18}{cell_text(row[name])}")


# `odfchain evidence`: proof that an owner signed two histories.

_COLUMNS = ["dataset", "sequenceNumber", "block", "otherBlock", "seen", "from"]
_TITLES = {"sequenceNumber": "number", "otherBlock": "other block"}


@cli.command("evidence")
def evidence_command(
    dataset: str | None = cli.argument(cli.DATASET),
    target: Path | None = cli.option(
        "Copy the proofs: one into a new file, or all into a folder.", "--export"
    ),
    file: Path | None = cli.option(
        "Check a proof in a file; no workspace and no network is needed.", "--check"
    ),
    output: str = cli.formats(),
) -> None:
    """List proofs that an owner signed two histories.

    Two keys statements of one number are a proof, too.

    A pull compares signed heads with those that were seen before. Two different blocks with one sequence
    number, both under heads that the dataset's key signed, are kept as a proof. That holds for pulls that are
    refused or forced, too. Owners who go back behind a published head (`reset`, `compact`, `pull --force`)
    leave such a proof.
    """
    if file is not None:
        if dataset is not None or target is not None:
            raise UsageError("--check is about a file, not about what is kept here")
        from odfchain.chain.equivocation import read_evidence_file

        screen.print_records([_row(read_evidence_file(file), None)], _COLUMNS[:4], output, titles=_TITLES)
        return
    with open_workspace() as workspace:
        kept = workspace.evidence.list(_id_of(workspace, dataset) if dataset else None)
        names = {}
        for known in workspace:
            with suppress(OdfchainError):  # one damaged dataset must not hide the proofs of others
                names[str(known.id)] = str(known.alias)
    sound = [item for item in kept if item.evidence is not None]
    for item in kept:
        if item.evidence is None:
            screen.echo(f"warning: {item.problem}", err=True)
    if target is not None:
        _export([item.evidence for item in sound if item.evidence], target)
    rows = [_row(item.evidence, item, names) for item in sound if item.evidence is not None]
    if rows or output != "table":
        screen.print_records(rows, _COLUMNS, output, titles=_TITLES, right=["sequenceNumber"])
    elif not kept:
        say("no owner is known to have signed two histories")
    if len(sound) < len(kept):
        raise SignatureError(
            "damaged",
            f"{len(kept) - len(sound)} of {len(kept)} proofs are damaged",
            hint="a later pull from a peer that shows the conflict makes them anew",
        )


def _export(proofs: list[Evidence], target: Path) -> None:
    if not proofs:
        raise UsageError("no proof to export")
    into_folder = target.is_dir() or len(proofs) > 1
    if into_folder:
        fsio.make_folder(target)
    for proof in proofs:
        name = f"{encode_base16(proof.dataset_id.to_bytes())}-{proof.name}.json"
        path = target / name if into_folder else target
        if not fsio.create_file(path, proof.to_bytes()):
            raise StoreError(f"{path}: the file already exists", hint="choose another name")
        say(f"wrote {path}")


def _id_of(workspace: Workspace, text: str) -> DatasetId:
    from odfchain import DatasetId

    # an id need not belong to a dataset of this workspace
    return DatasetId.parse(text) if text.startswith("did:") else workspace[text].id


def _row(proof: Evidence, kept: KeptEvidence | None, names: dict[str, str] | None = None) -> dict[str, Any]:
    one, other = proof.hashes
    dataset_id = str(proof.dataset_id)
    seen: dict[str, Any] = {}
    found: dict[str, Any] = {}
    if kept is not None:
        sightings = [screen.record(each, "time", "from:where") for each in kept.sightings]
        more = f" (+{len(sightings) - 1})" if len(sightings) > 1 else ""
        first = sightings[0] if sightings else None
        seen = {"seen": first and first["time"], "from": first and f"{first['from']}{more}"}
        found = {"sightings": sightings, "file": str(kept.path)}
    return {
        "dataset": (names or {}).get(dataset_id, dataset_id),
        "sequenceNumber": proof.sequence_number,
        "block": str(one),
        "otherBlock": str(other),
        **seen,
        "id": dataset_id,
        "signed": [screen.record(each, "head", "sequence_number", "time") for each in proof.signed],
        "blocks": [len(branch.blocks) for branch in proof.branches],
        **({"keysStatements": len(proof.statements)} if proof.statements else {}),
        **found,
    }


# Reports as people read them: one fact to a line, the same with every version, which scripts may look for. On
# a terminal long lines are folded, and checks are listed where something is wrong.

_STATES = {"notChecked": "not checked", "notApplicable": "nothing"}


def print_report(report: Report, *, verbose: bool = False) -> None:
    """One report; with `verbose` all checks are listed also where the dataset is clean."""
    _print_verdict(report)
    for fault in report.faults:
        block = f", block {fault.sequence_number}" if fault.sequence_number is not None else ""
        screen.echo(f"  {_named([fault.check])}{block}")
        screen.echo(f"    {fault.file}")
        screen.echo(f"    {fault.message}")
    for item in report.unchecked:
        _say(f"not checked{', ' + item.where if item.where else ''}: {item.message}")
    shown = sys.stdout.isatty()
    # on a terminal the signature has a line of its own
    said = report.signature.message if shown else None
    for numbers, reason in report.not_run():
        if reason != said:
            _say(f"not run, or not everywhere: {_named(numbers)}: {reason}")
    if shown:
        _say(report.signature_text)
    for note in report.remarks:
        if note != said:
            _say(f"note: {note}")
    if verbose or (shown and report.verdict != "clean"):
        _print_checks(report)


def _print_verdict(report: Report) -> None:
    word, colour = {"faulty": ("FAULT ", "red"), "clean": ("ok    ", "green")}.get(
        report.verdict, ("PART  ", "yellow")
    )
    screen.echo(word, fg=colour, bold=True, nl=False)
    screen.echo(
        f"{report.alias}: {counted(report.blocks, 'block')}, {counted(report.slices, 'slice')}, "
        f"{counted(report.records, 'record')}, {human_size(report.data_bytes)}{_replayed(report)}"
    )


def _replayed(report: Report) -> str:
    if report.replay is None:
        return ""
    said, engines = f", replayed {counted(report.replay.transactions, 'transaction')}", report.replay.engines
    return f"{said} with {' and '.join(engines)}" if engines else said


def _named(numbers: list[int]) -> str:
    from odfchain.audit.report import CHECKS

    if len(numbers) > 3:
        return "checks " + ", ".join(map(str, numbers))
    return ", ".join(f"check {n} ({CHECKS[n].name})" for n in numbers)


def _print_checks(report: Report) -> None:
    from odfchain.audit.report import CHECKS

    rows = [
        {
            "check": f"{number:>2} {check.name}",
            "state": _STATES.get(report.state(number), report.state(number)),
            "checked": report.done.get(number, 0),
            "faults": sum(fault.check == number for fault in report.faults),
            "section": check.section,
        }
        for number, check in CHECKS.items()
    ]
    screen.print_records(rows, [*rows[0]], "table", right=["checked", "faults"])


def _say(text: str) -> None:
    """A line, folded where it is a terminal's."""
    lines = [f"  {text}"]
    if sys.stdout.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        folding = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False)
        folding.break_on_hyphens = False
        lines = folding.wrap(lines[0])
    for line in lines:
        screen.echo(line)
