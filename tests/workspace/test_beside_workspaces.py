"""What the public API does with files beside workspaces: keys, settings, manifests, tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import odfchain
from odfchain.api.settings import Configuration
from odfchain.api.workspace import Workspace
from odfchain.chain.statements import create_key_file, read_key_file
from odfchain.cli.parameters import token_for
from odfchain.cli.start import manifest_template, questions
from odfchain.errors import StoreError, UsageError
from odfchain.odf.manifests import read_snapshots
from odfchain.spark.known_errors import known_error
from odfchain.storage.locations import PeerUrl
from odfchain.workspace.creation import in_creation_order


def test_a_key_file_has_the_identity_that_it_was_made_with(tmp_path: Path) -> None:
    made = create_key_file(tmp_path / "key.pem")
    assert read_key_file(tmp_path / "key.pem").dataset_id == made.dataset_id
    with pytest.raises(StoreError):
        create_key_file(tmp_path / "key.pem")


def test_settings_are_read_and_changed_by_name(tmp_path: Path) -> None:
    settings = Configuration(Workspace.init(tmp_path).path)
    assert settings.set("share.parallel", ["7"]) == "share.parallel"
    assert settings.get("share.parallel") == 7
    settings.set("ingest.variables.KEY", ["secret"])
    shown = {name: (value, default) for name, value, default in settings.all()}
    assert shown["share.parallel"] == (7, False)
    assert shown["ingest.variables"] == ({"KEY": "…"}, False)
    settings.unset("share.parallel")
    assert (
        settings.get("share.parallel")
        == {n: v for n, v, _ in Configuration(tmp_path).all()}["share.parallel"]
    )


@pytest.mark.parametrize("kind", ["root", "derivative", "assets"])
def test_templates_are_valid_as_they_are(kind: str) -> None:
    text = manifest_template(odfchain.DatasetAlias.parse("a.b"), kind, first="for x")
    assert text.startswith("# for x\n")
    (found,) = read_snapshots(text)
    assert (str(found.name), found.kind.value) == ("a.b", "Derivative" if kind == "derivative" else "Root")


def test_inputs_are_made_before_what_is_made_of_them() -> None:
    texts = [
        manifest_template(odfchain.DatasetAlias.parse("made"), "derivative"),
        manifest_template(odfchain.DatasetAlias.parse("org.example.cities"), "root"),
    ]
    found = [snapshot for text in texts for snapshot in read_snapshots(text)]
    assert [str(s.name) for s in in_creation_order(found)] == ["org.example.cities", "made"]


def test_what_a_manifest_does_is_asked_until_it_is_allowed(tmp_path: Path) -> None:
    text = manifest_template(odfchain.DatasetAlias.parse("a"), "root")
    text = text.replace("https://example.com/", "https://example.com/${{ env.KEY }}/")
    found = [("it", snapshot) for snapshot in read_snapshots(text)]
    config = Workspace.init(tmp_path).ingest_config
    (asked,) = questions(found, config, allow_commands=False, hosts=())
    assert (asked.source, asked.commands, asked.hosts) == ("it", False, ("example.com",))
    assert asked.effects == ("sends the variable KEY to example.com",)
    assert questions(found, config, allow_commands=False, hosts=("example.com",)) == []


def test_the_token_of_the_environment_is_for_one_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = PeerUrl.parse("http://127.0.0.1/a"), PeerUrl.parse("http://example.com/a")
    monkeypatch.delenv("ODFCHAIN_TOKEN", raising=False)
    assert token_for([here]) is None
    monkeypatch.setenv("ODFCHAIN_TOKEN", "t")
    assert token_for([here]) == "t"
    assert capsys.readouterr().err == ""
    assert token_for([there]) == "t"
    assert "goes to example.com over plain http" in capsys.readouterr().err
    assert token_for([]) is None
    with pytest.raises(UsageError, match="a token for one server"):
        token_for([here, there])


def test_an_error_of_the_system_about_a_file_is_one_of_ours() -> None:
    found = known_error(FileNotFoundError(2, "No such file or directory", "x"))
    assert isinstance(found, StoreError)
    assert "x: No such file" in str(found)
    assert known_error(ValueError("ours")) is None
