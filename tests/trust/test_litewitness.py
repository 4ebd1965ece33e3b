"""A witness that others wrote: litewitness of C2SP takes our notes, cosigns them, and refuses other histories."""

from __future__ import annotations

import base64
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from odfchain import Workspace, errors
from odfchain.chain.checkpoints import NoteKey, NoteKind, note_in
from odfchain.chain.key_statements import Delegate, Scope
from odfchain.chain.transparency_log import tree_root
from odfchain.odf.times import Timestamp
from tests.kit.processes import wait_until
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.trust_cases import case
from tests.kit.witnesses import ask

pytestmark = pytest.mark.soak


@pytest.fixture
def owner(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path / "owner")
    make_dataset(workspace._files, "d", 5)
    return workspace


@pytest.fixture
def laptop(owner: Workspace, tmp_path: Path) -> Workspace:
    """A copy of `d` whose own key is the owner's delegate."""
    workspace, there = Workspace.init(tmp_path / "laptop"), (tmp_path / "A/d").as_uri()
    owner["d"].push(there)
    workspace.pull(there, name="d")
    delegate = Delegate.of(workspace["d"].new_key(), Timestamp.now(), 86_400, tuple(Scope))
    owner["d"].say_keys(delegates=[delegate])
    owner["d"].push(there)
    workspace.pull(there, name="d")
    return workspace


@pytest.fixture
def litewitness(owner: Workspace, laptop: Workspace, tmp_path: Path) -> Iterator[tuple[str, NoteKey]]:
    """Its address and key; `d` and its keys are made known to it as `witnessctl add-log` and `add-key` do."""
    program, agent = shutil.which("litewitness"), shutil.which("ssh-agent")
    if program is None or agent is None:
        pytest.skip(
            "litewitness and ssh-agent are not here: "
            "go install filippo.io/torchwood/cmd/litewitness@v0.9.0 (Go 1.24)"
        )
    key, db, log = tmp_path / "key", tmp_path / "w.db", tmp_path / "log"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout
    origin = str(owner["d"].id)
    with closing(sqlite3.connect(db)) as rows:
        rows.executescript(
            "create table log (origin text primary key, tree_size integer not null, tree_hash text not null);"
            "create table key (origin text not null, key text not null, foreign key(origin) references log(origin))"
        )
        empty = base64.b64encode(tree_root(())).decode()
        rows.execute("insert into log values (?, 0, ?)", (origin, empty))
        ((delegate, _),) = laptop["d"].keys().delegates
        for each in (owner["d"].id, delegate.key):
            vkey = NoteKey(origin, each.public_key, NoteKind.LOG)
            rows.execute("insert into key values (?, ?)", (origin, str(vkey)))
        rows.commit()
    sock = Path(os.path.relpath(tmp_path / "s"))  # the path of a socket has at most 107 bytes
    with (
        subprocess.Popen([agent, "-D", "-a", sock], stdout=subprocess.DEVNULL) as keys,
        log.open("wb") as errors_to,
    ):
        try:
            wait_until(sock.exists, keys)
            env = os.environ | {"SSH_AUTH_SOCK": str(sock)}
            subprocess.run(["ssh-add", "-q", key], env=env, check=True)
            command = [program, "-listen", "127.0.0.1:0", "-name", "lite.example/w", "-db", db]
            command += ["-ssh-agent", sock, "-key", shown.split()[1]]
            with subprocess.Popen(command, stderr=errors_to) as witness:
                try:
                    found = wait_until(lambda: re.search(r"vkey=(\S+)", log.read_text()), witness)
                    address = wait_until(lambda: _listening(witness.pid), witness)
                    yield f"http://{address}", NoteKey.parse(found[1])
                finally:
                    witness.terminate()
        finally:
            keys.terminate()


def _listening(pid: int) -> str | None:
    """Where a process listens: it takes a free port, and does not say which."""
    found = Path(f"/proc/{pid}/net/tcp").read_text()
    inodes = {path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    for fields in (line.split() for line in found.splitlines()[1:]):
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return f"127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}"
    return None


def test_case_3_litewitness_cosigns_our_checkpoints(
    owner: Workspace, litewitness: tuple[str, NoteKey], tmp_path: Path
) -> None:
    _, expected = case(3)
    dataset, place = owner["d"], (tmp_path / "A/d").as_uri()
    ask(owner, [litewitness])
    for value in (7, 8):  # the first head, and one that continues it by a proof
        outcome = dataset.push(place)
        assert "has not cosigned" not in str(outcome.problem)
        note = note_in(tmp_path / "A/d", dataset.id)
        assert note is not None
        assert [key.name for key in note.times([litewitness[1]])] == [expected["litewitness"]]
        add_slice(dataset._files, value)
    dataset.push(place)
    chain = dataset._files.chain
    number = chain.get(chain.head()).sequence_number  # type: ignore[arg-type]
    dataset.reset(str(chain.hash_at(number - 1, chain.head())))  # type: ignore[arg-type]
    add_slice(dataset._files, 9)
    for path in (owner.path / "seen").glob("*.checkpoint"):
        path.unlink()  # it is the witness who knows better
    with pytest.raises(errors.SignatureError, match=r"lite\.example/w has cosigned another history"):
        dataset.push((tmp_path / "B/d").as_uri())


def test_litewitness_cosigns_checkpoints_of_a_delegate(
    laptop: Workspace, litewitness: tuple[str, NoteKey], tmp_path: Path
) -> None:
    """It has a key of the log more, under the same name."""
    dataset = laptop["d"]
    ask(laptop, [litewitness])
    for value in (7, 8):
        add_slice(dataset._files, value)
        outcome = dataset.push((tmp_path / "A/d").as_uri())
        assert "has not cosigned" not in str(outcome.problem)
        note = note_in(tmp_path / "A/d", dataset.id)
        assert note is not None
        ((delegate, _),) = dataset.keys().delegates
        assert (note.signer, [*note.times([litewitness[1]])]) == (delegate.key, [litewitness[1]])
