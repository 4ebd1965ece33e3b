"""What a manifest says of a source and blocks do not carry."""

from __future__ import annotations

import functools
import json

import jsonschema
import pytest

from odfchain.errors import InvalidIdError, ManifestError
from odfchain.odf.events import MetadataEvent
from odfchain.odf.manifests import ManifestKind, read_manifest, read_snapshots
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Duration
from odfchain.odf.yaml import read_document
from tests.kit.support import ROOT

DAY = 86_400_000
SOURCE = """\
kind: DatasetSnapshot
version: 1
content:
  name: x
  kind: Root
  metadata:
    - kind: {kind}
      {fetch}read: {{kind: NdJson}}
      merge: {{kind: Append}}
      {rule}
"""
POLLING = SOURCE.replace("{kind}", "SetPollingSource").replace(
    "{fetch}", "fetch: {{kind: Url, url: 'file:///x'}}\n      "
)
PUSH = SOURCE.replace("{kind}", "AddPushSource").replace("{fetch}", "sourceName: hourly\n      ")


@functools.cache
def schema_of_snapshots() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "schemas" / "DatasetSnapshot.json").read_text())
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1 day", DAY), ("36 hours", 36 * 3_600_000), ("90m", 90 * 60_000), ("1h 30m", 90 * 60_000),
        ("1d12h", 36 * 3_600_000), ("2 Weeks", 14 * DAY), ("500ms", 500), ("0s", 0), (" 1  minute ", 60_000),
    ],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    found = Duration.parse(text)
    assert found.milliseconds == milliseconds
    assert Duration.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", " ", "1", "day", "-1 day", "1.5 days", "1 month", "1 D", "1 dayly", "1e3s", "٣d", "9999999 weeks"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidIdError):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{maxDelay: 1 day}", WatermarkRule(max_delay=Duration(DAY))),
        ("fromSystemTime", WatermarkRule(from_system_time=True)),
        ("FromSystemTime", WatermarkRule(from_system_time=True)),
        (
            "{fromSystemTime: true, maxDelay: 2h}",
            WatermarkRule(max_delay=Duration(DAY // 12), from_system_time=True),
        ),
        ("{maxFuture: 30 days}", WatermarkRule(max_future=Duration(30 * DAY))),
    ],
)
@pytest.mark.parametrize(("manifest", "name"), [(POLLING, "default"), (PUSH, "hourly")])
def test_the_watermark_of_a_source(manifest: str, name: str, text: str, rule: WatermarkRule) -> None:
    full = manifest.format(rule=f"watermark: {text}")
    (found,) = read_snapshots(full)
    (plain,) = read_snapshots(manifest.format(rule=""))
    assert found.watermarks == {name: rule}
    assert found.metadata == plain.metadata, "the event is what it is without"
    schema_of_snapshots().validate(read_document(full).value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 day", r"line 11: metadata\[0\]\.watermark: must be an object or FromSystemTime"),
        ("{maxDelay: soon}", r"metadata\[0\]\.watermark\.maxDelay: 'soon' is not a length of time"),
        ("{maxDelay: 5}", r"metadata\[0\]\.watermark\.maxDelay: must be text"),
        ("{delay: 1 day}", r"metadata\[0\]\.watermark: unknown property 'delay'"),
        ("[]", r"metadata\[0\]\.watermark: must be an object or FromSystemTime, not a list"),
    ],
)
def test_a_rule_that_is_malformed(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_snapshots(POLLING.format(rule=f"watermark: {text}"))


def test_an_event_for_a_block_has_no_place_for_it() -> None:
    text = "kind: MetadataEvent\nversion: 1\ncontent: {kind: SetPollingSource, fetch: {kind: Url, url: x}, read: {kind: NdJson}, merge: {kind: Append}, watermark: fromSystemTime}"
    with pytest.raises(ManifestError, match="unknown property 'watermark'"):
        read_manifest(read_document(text), ManifestKind("MetadataEvent", MetadataEvent, range(1, 2)), None)


def test_only_sources_have_one() -> None:
    text = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: x, kind: Root, metadata: [{kind: SetInfo, watermark: fromSystemTime}]}"
    with pytest.raises(ManifestError, match="unknown property 'watermark'"):
        read_snapshots(text)
