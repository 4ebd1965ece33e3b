"""The tour that `bench/golden.py` compares: files, and lines that use every command."""

from __future__ import annotations

VENDOR = "iata,name,elevation,opened\nZRH,Zurich,1416,1948-06-14\nGVA,Geneva,1411,1920-01-01\nXXA,Ghost,0,\n"

FILES = {
    "vendor.csv": VENDOR,
    "vendor2.csv": VENDOR.replace("Zurich,1416", "Zurich Airport,1417").replace("1411", "1412"),
    "airports.yaml": """kind: DatasetSnapshot
version: 1
content:
  name: airports
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [iata STRING, name STRING, elevation INT, opened DATE]}
      merge: {kind: Snapshot, primaryKey: [iata]}
    - {kind: SetInfo, description: Airports of a vendor, keywords: [aviation]}
    - {kind: SetLicense, shortName: CC0, name: Creative Commons Zero,
       websiteUrl: "https://creativecommons.org/publicdomain/zero/1.0/"}
""",
    "high.yaml": """kind: DatasetSnapshot
version: 1
content:
  name: airports.high
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: airports}]
      transform: {kind: Sql, engine: spark, query: "select event_time, iata, name, elevation from airports"}
""",
    "sales.ndjson": "".join(
        f'{{"t": "2026-01-{d:02}T00:00:00Z", "shop": {d % 3}, "paid": {d}.5}}\n' for d in range(1, 10)
    ),
    "fixes.csv": "iata,name\nZRH,Zürich\n",
    "ghosts.csv": "iata\nXXA\n",
    "bad.csv": "iata,name,elevation,opened\nBSL,Basel,high,1946-05-08\n",
    "drift.yaml": "kind: DriftPolicy\nversion: 1\ncontent:\n  columns: {name: skip}\n",
    "broken.yaml": "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: x\n  kind: Rot\n  metadata: []\n",
    "catalog/s1.json": """{"type": "Feature", "stac_version": "1.1.0", "id": "s1", "geometry": null,
 "links": [], "properties": {"datetime": "2026-01-01T00:00:00Z"}, "assets": {"B04": {"href": "./B04.tif"}}}
""",
    "catalog/B04.tif": "scene 1",
}
"""By path below the folder of the tour."""

STEPS = """
version
help verify
completions bash
init
init
list
add airports.yaml
add broken.yaml
add nowhere.yaml
new my.data --root
new my.other
import sales.ndjson --as sales --event-time t
ingest airports vendor.csv
ingest airports vendor.csv
ingest airports bad.csv
ingest nowhere vendor.csv
list
list -o json
tail airports -o json
tail sales -n 2
log airports
log airports -o json
inspect schema airports -o ddl
inspect schema airports -o json
inspect lineage airports -o json
branch create airports fix-names
branch list airports -o json
correct airports@fix-names fixes.csv
correct airports@fix-names --remove ghosts.csv
diff airports fix-names
diff airports fix-names -o json
ingest airports vendor2.csv
merge airports fix-names
merge airports fix-names --conflicts conflicts.csv
merge airports fix-names --resolve theirs --message umlauts
state airports
state airports@3 -o json
history airports iata=ZRH -o json
log airports --graph
add high.yaml
pull airports.high
pull airports.high
tail airports.high -o json
revert airports 5
blame airports --offset 0 -o json
blame airports.high --offset 0
verify % -o json
verify airports.high --replay
verify airports -o html > report.html
profile airports -o json
profile airports -o html > profile.html
profile airports --write
diff --profile airports@5 airports@7 -o json
diff --profile airports --policy drift.yaml -o html > drift.html
manifest airports -o json
manifest airports --write
export airports -o ndjson
export airports --to airports.parquet
digest airports.parquet
export airports --format delta --to file://$PWD/delta
sql -c 'select iata, elevation from airports order by "offset"' -o json
sql -c 'select * from nowhere'
sql -c 'select count(*) as n from state(''airports@4'')' --proof proof.json
proof show proof.json
proof verify proof.json
key create auditor.pem
key show auditor.pem -o json
attest airports --key auditor.pem --report report.json
attestations airports -o json
evidence
sign airports
config set slice.maxBytes 1000000
config get slice.maxBytes
config set nothing 1
config list
repo add mirror file://$PWD/mirror
repo list -o json
push airports --to mirror
push airports --to mirror
search --repo mirror -o json
pull file://$PWD/mirror/airports --as copy
-w other init
-w other pull file://$PWD/mirror/airports --as copy
-w other verify copy -o json
-w other pull file://$PWD/mirror/airports --metadata-only
token create laptop --allow push:stations
token list -o json
token revoke laptop
login http://127.0.0.1:1/ --stdin
logout http://127.0.0.1:1/
assets derive catalog/s1.json --output scenes.parquet
assets href scenes.parquet
assets check scenes.parquet
compact airports --hard --dry-run -o json
branch delete airports fix-names
compact airports --soft --as compacted
-y reset sales 3 --force
reset airports 2
rename sales shops
source disable airports
fetch airports
delete shops
-y delete shops
delete shops
gc -o json
fsck -o json
block decode $HEAD(airports)
pull nowhere
nonsense
list --nonsense
""".strip().split("\n")
"""Command lines; `$PWD` is the folder, `$HEAD(X)` the head of X, and `> FILE` keeps the output."""

SERVED = ("", "airports/", "airports/refs/head", "info", "nowhere/refs/head")
"""What is asked of a server of the workspace, below its URL."""

STORE_STEPS = """
init --store $STORE
list
import vendor.csv --as stored --key iata
list
ingest stored vendor2.csv
pull stored
tail stored
verify stored
branch create stored draft
gc
delete stored
""".strip().split("\n")
"""Command lines in a workspace whose datasets are in a store, whose requests are counted."""
