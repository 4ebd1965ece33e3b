"""What the reference node answered and signed is answered the same here, byte for byte."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.odf.identity import DatasetKey
from odfchain.query.answers import (
    Answer,
    Number,
    canonical,
    double,
    hash_of,
    output_of,
    read,
    read_answer,
    single,
    written,
)
from odfchain.text import one_line
from tests.kit.node_types import RECORDED, SIGNED, recorded_answer, workspace_with_types
from tests.kit.support import FIXTURES

VECTORS = json.loads((FIXTURES / "query" / "vectors.json").read_bytes())
NODE_LINE = re.compile(r"Line: (\d+), Column: (\d+)")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with workspace_with_types(tmp_path_factory.mktemp("recorded")) as workspace:
        yield workspace


def node_key() -> DatasetKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return DatasetKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["key"])))


# --- case 31: the node's own two answers ---------------------------------------------------------------


def test_case_31_the_first_vector_has_the_same_hashes_signature_and_signer() -> None:
    vector = VECTORS["plain"]
    answer = Answer.signed(vector["input"], vector["output"], node_key())
    assert answer.commitment == vector["commitment"]
    assert answer.proof == vector["proof"]
    assert answer.problem() is None
    assert json.loads(answer.to_json()) == vector


def test_case_31_the_second_vector_says_the_types_of_its_columns() -> None:
    vector, wanted = VECTORS["plain"], VECTORS["withSchema"]
    asked = vector["input"] | {"include": ["Input", "Proof", "Schema"], "schemaFormat": "ArrowJson"}
    kinds = {"int64": pa.int64(), "uint64": pa.uint64(), "string": pa.string()}
    schema = pa.schema([pa.field(name, kinds[kind], nullable=False) for name, kind in wanted["columns"]])
    output = vector["output"] | {
        "schema": output_of(schema.empty_table(), "JsonAoA", schema=True)["schema"],
        "schemaFormat": "ArrowJson",
    }
    assert hash_of(asked).startswith(wanted["inputHash"])
    assert hash_of(output).startswith(wanted["outputHash"])


# --- case 32: canonical JSON ---------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "wanted"), VECTORS["canonical"]["texts"].items())
def test_case_32_texts(text: str, wanted: str) -> None:
    assert canonical(text) == wanted.encode()
    assert json.loads(written(text)) == text


@pytest.mark.parametrize("kind", ["doubles", "singles"])
def test_case_32_numbers(kind: str) -> None:
    def shown(text: str) -> str:
        if kind == "doubles":
            return canonical(double(float(text))).decode()
        (value,) = struct.unpack("<f", struct.pack("<f", float(text)))
        return canonical(single(value)).decode()

    wanted = VECTORS["canonical"][kind]
    assert {text: shown(text) for text in wanted} == wanted


def test_case_32_integers_and_members() -> None:
    for text in VECTORS["canonical"]["integers"]:
        assert canonical(int(text)) == text.encode() == canonical(read(text.encode()))
    assert canonical({"b": [None, True], "a": {"ä": Number("1.50")}}) == (
        b'{"a":{"\\u00e4":1.50},"b":[null,true]}'
    )


def test_every_single_is_read_back_and_no_shorter_text_would_be() -> None:
    rng = random.Random(7)
    powers = [exponent << 23 for exponent in range(255)]
    for bits in [*powers, *range(1, 200), *(rng.getrandbits(31) for _ in range(5_000))]:
        (value,) = struct.unpack("<f", struct.pack("<I", bits))
        text = single(value)
        if text is None:
            assert not math.isfinite(value)
            continue
        assert struct.pack("<f", float(text)) == struct.pack("<f", value)
        digits = text.partition("e")[0].replace(".", "").strip("0")
        if len(digits) > 1:
            shorter = f"{value:.{len(digits) - 2}e}"
            in_range = abs(float(shorter)) < 3.4028235e38
            assert not in_range or struct.pack("<f", float(shorter)) != struct.pack("<f", value)


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":2}', "[NaN]", "[1,]", '"\x01"', "[" * 100_000, '"a" "b"', "\ufeff1", ""]
)
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read(text.encode())
    with pytest.raises(ValueError, match="half a character"):
        canonical("\ud800")
    with pytest.raises(ValueError, match="levels deep"):
        canonical(read(b"[" * 70 + b"]" * 70))


# --- the recorded answers ------------------------------------------------------------------------------


def test_all_recorded_answers_are_looked_at() -> None:
    rest = {"tail", "tail_schema", "metadata_default", "info", "me", "unknown_field"}
    """Of the node's other questions, which are asked in `tests/node/test_rest.py`."""
    checks = {"verify_ok", "verify_bad_commitment", "verify_unknown_block_hash"}
    assert set(RECORDED) == {*SIGNED, "bad_sql", "unknown_table"} | checks | rest
    assert len(RECORDED) == 19


@pytest.mark.parametrize("name", SIGNED)
def test_hashes_and_signatures_check_out(name: str) -> None:
    answer = recorded_answer(name)
    assert answer.problem() is None
    assert answer.to_json() == RECORDED[name]["response_text"]


@pytest.mark.parametrize("name", [name for name in SIGNED if name != "volatile"])
def test_the_same_question_has_the_same_answer(name: str, workspace: odf.Workspace) -> None:
    theirs = recorded_answer(name)
    ours = workspace.prove(
        theirs.query,
        data_format=theirs.input["dataFormat"],
        schema_format=theirs.input.get("schemaFormat"),
        limit=int(theirs.input["limit"]),
    )
    assert written(ours.output) == written(theirs.output)
    assert written(ours.input) == written(theirs.input)
    assert ours.commitment == theirs.commitment
    assert ours.engine == "datafusion 55.0.0"
    verdict = odf.verify_proof(theirs, workspace)
    assert (verdict.ok, verdict.exit_code, verdict.to_json()) == (True, 0, {"ok": True})
    assert verdict.datasets == ("types @ 3",)


def test_what_the_node_should_not_have_signed_is_no_false_answer(workspace: odf.Workspace) -> None:
    verdict = odf.verify_proof(recorded_answer("volatile"), workspace)
    assert (verdict.ok, verdict.incomplete, verdict.exit_code, verdict.kind) == (False, True, 7, None)
    assert "now gives another value each time" in verdict.message


@pytest.mark.parametrize("name", ["verify_ok", "verify_bad_commitment", "verify_unknown_block_hash"])
def test_verdicts_are_those_of_the_node(name: str, workspace: odf.Workspace) -> None:
    case = RECORDED[name]
    verdict = odf.verify_proof(read_answer(json.dumps(case["body"]).encode(), name), workspace)
    wanted = json.loads(case["response_text"])
    assert verdict.ok == wanted["ok"]
    assert verdict.kind == wanted.get("error", {}).get("kind")
    assert verdict.exit_code == (0 if wanted["ok"] else 6)


@pytest.mark.parametrize(
    ("name", "kind"), [("bad_sql", odf.errors.QueryError), ("unknown_table", odf.OdfchainError)]
)
def test_what_the_node_refuses_is_refused(name: str, kind: type, workspace: odf.Workspace) -> None:
    case = RECORDED[name]
    assert case["status"] == 400
    said = json.loads(case["response_text"])["message"]
    for ask in (workspace.prove, workspace.sql):
        with pytest.raises(kind) as caught:
            ask(case["body"]["query"])
        if place := NODE_LINE.search(said):
            assert f"{place[1]}:{place[2]}" in str(caught.value) or f"line {place[1]}" in str(caught.value)
        else:
            assert "nope" in one_line(str(caught.value))
