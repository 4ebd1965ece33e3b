"""Every cap in one place, with its unit and its reason.

A reader of untrusted bytes needs bounds that hold whatever the bytes say. A limit that is reached is an
error that names the limit, never a silent cut. Sources: RFC-003.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read. All counts are inclusive maxima."""

    block_bytes: int = 1 << 20
    """A metadata block file [bytes]. Real blocks are under 10 KiB; attachments are the large ones."""
    flatbuffer_depth: int = 64
    """Nesting of tables in a FlatBuffer [levels]. The C++ and Rust verifiers use the same number."""
    flatbuffer_visits: int = 100_000
    """Tables, vector elements and strings visited in one buffer [count]; stops shared-subtree blow-ups."""
    manifest_bytes: int = 1 << 20
    """A YAML or JSON manifest [bytes]."""
    manifest_depth: int = 32
    """Nesting of a YAML or JSON manifest [levels]."""
    manifest_nodes: int = 10_000
    """Mappings, sequences and scalars in one manifest [count]."""
    manifest_files: int = 10_000
    """YAML files below a folder whose manifests are added [count]."""
    ref_bytes: int = 128
    """A reference file [bytes]; a base16 multihash has 69."""
    name_bytes: int = 200
    """A dataset alias [bytes]; leaves room for a file-system's 255."""
    chain_blocks: int = 10_000_000
    """Blocks of one chain that a walk will follow [count]; a walk also stops at head.sequence + 1."""
    list_items: int = 100_000
    """Items of one list in a decoded event [count]."""
    constraints_characters: int = 64 << 10
    """The text of CONSTRAINTS.yaml [characters]."""
    foreign_keys: int = 100
    """Foreign keys that one dataset declares [count]."""
    key_columns: int = 32
    """Columns of one key that is declared there [count]."""


LIMITS = Limits()
"""The limits in force; tests walk each boundary with values of their own."""


@dataclass(frozen=True, slots=True)
class ParquetLimits:
    """Bounds on what Parquet files of others become when they are decoded."""

    footer_bytes: int = 4 << 20
    """A footer [bytes]: 40,000 column chunks; Thrift makes it a hundred times larger in memory."""
    columns: int = 10_000
    """Leaf columns of one file [count]."""
    pages: int = 1_000_000
    """Pages of one file [count]; looking at each costs 20 µs."""
    page_header_bytes: int = 16 << 20
    """A page header with its statistics [bytes], as Arrow."""
    page_bytes: int = 64 << 20
    """A page that is decompressed, and so the longest value [bytes]; writers aim at 1 MiB."""
    batch_bytes: int = 128 << 20
    """Rows that are decoded at a time [bytes]; fewer rows are taken where they are longer."""
    unexamined_bytes: int = 16 << 20
    """A column of a row group that cannot become more than this is not looked at closer [bytes]."""
    short_text_bytes: int = 1 << 10
    """Texts of a dictionary that are counted as if all were that long [bytes]: 64 MiB at a time."""
    nested_bytes: int = 512 << 20
    """Values of a column of lists in one row group [bytes], as one row might have them all…"""
    nested_ratio: int = 20
    """…or this multiple of what is stored, whichever is more."""
    decoded_bytes: int = 8 << 30
    """All rows of a file, decoded [bytes]: about twenty seconds of hashing…"""
    decoded_ratio: int = 200
    """…or this multiple of the file, whichever is more; repetitive text compresses to a hundredth."""


PARQUET = ParquetLimits()


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """Bounds on peers: on those that are read from, and on clients that read from here (RFC-021)."""

    request_seconds: float = 30.0
    """One request, its retries included [s]; and `bytes_per_second` more for what is asked for."""
    bytes_per_second: int = 64 << 10
    """The slowest peer that is waited for [bytes/s]: a bad mobile connection."""
    connect_seconds: float = 5.0
    """From the first packet to a connection, and again for TLS [s]."""
    window_seconds: float = 30.0
    """In so much time of waiting a peer sends what the slowest would [s]; else it is given up, whatever the
    size that it declares would allow."""
    idle_seconds: float = 10.0
    """Without a byte, in a request [s]."""
    store_idle_seconds: float = 20.0
    """The same for object stores [s], which think longer before they answer."""
    redirects: int = 3
    """Redirects of one request [count]; static hosts need one or two."""
    retries: int = 3
    """Attempts after the first, on failures that may pass [count]."""
    retry_seconds: float = 0.5
    """Wait before the first of them [s]; it doubles each time."""
    parallel: int = 10
    """Requests at the same time [count], as in the reference implementation."""
    answer_head_bytes: int = 32 << 10
    """Status line and headers of an answer, interim answers and trailers included [bytes]; common servers
    allow 8 to 16 KiB."""
    chain_bytes: int = 8 << 30
    """All blocks that one pull receives [bytes]: ten million of an ordinary size, not of the largest."""
    hinted_blocks: int = 1_000_000
    """A chain that has a hint, and the hashes that are read of one [count]: a file of 70 MB."""
    index_bytes: int = 16 << 20
    """The index of a repository [bytes]; about 50,000 datasets."""
    index_values: int = 1_000_000
    """Values in it [count]: a dataset has eight."""
    token_bytes: int = 8_192
    """A bearer token [bytes]: what servers take in a header field."""
    credentials_bytes: int = 1 << 20
    """The file of a user's tokens [bytes]."""
    listed_datasets: int = 10_000
    """Datasets of a repository that are listed, and folders that are looked into for them [count]."""
    shared_names: int = 100_000
    """Names of datasets in a store that a workspace shares [count]."""
    connections: int = 400
    """Clients served at the same time [count], more are answered with 503; with a file each they fit into
    the usual 1,024 handles."""
    request_head_seconds: float = 20.0
    """Until a client has sent the headers of its request [s]; without it a few thousand bytes hold all
    connections."""
    request_head_bytes: int = 64 << 10
    """These headers [bytes]."""
    requests_ahead: int = 64
    """Requests of one client that wait to be answered [count]; more stay bytes, and then with the client."""
    stall_seconds: float = 30.0
    """Until a client has taken what was written for it, 64 KiB [s]."""
    piece_seconds: float = 300.0
    """Until a client has taken one piece of a response [s]."""


SHARING = SharingLimits()


@dataclass(frozen=True, slots=True)
class SmartLimits:
    """Bounds on the smart transfer protocol (RFC-050)."""

    message_bytes: int = 24 << 20
    """A message of blocks [bytes]: they are lists of integers in it, four times their size."""
    request_bytes: int = 512 << 10
    """Every other message to a node [bytes]; one with as many objects as are allowed has 180 KB…"""
    answer_bytes: int = 8 << 20
    """…and where these objects are [bytes]: 8 KiB for each."""
    value_bytes: int = 32
    """Bytes of a message for each value in it [bytes]; of what messages are made of it is more."""
    small_frames: int = 100
    """Frames of a connection that bring next to nothing [count], and one more each second."""
    small_frame_bytes: int = 1 << 10
    """Which are those of less [bytes]."""
    unfinished_bytes: int = 32 << 20
    """All that a node has got from all clients and not dealt with [bytes], messages of blocks aside."""
    large_messages: int = 2
    """Messages of blocks that a node takes at the same time [count]; others wait."""
    unread_bytes: int = 64 << 20
    """All that a node has sent and its clients have not taken [bytes]."""
    depth: int = 8
    """Nesting of a message [levels]."""
    items: int = 1_000
    """Objects of one message [count]; more come in several."""
    text_characters: int = 8_192
    """A text in a message [characters]: a URL with a signature."""
    blocks: int = 15_000
    """Blocks of one batch [count]; the reference node closes at 16 MiB, about 17,000."""
    batch_bytes: int = 16 << 20
    """A batch [bytes]…"""
    unpacked_bytes: int = 256 << 20
    """…and unpacked."""
    uncommitted_share: float = 0.5
    """Share of the disk space for uploads that one token's uncommitted ones may take."""


SMART = SmartLimits()


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Bounds on rows that are sent to a node (RFC-061)."""

    body_bytes: int = 64 << 20
    """A body [bytes]."""
    silent_seconds: float = 10.0
    """Without a byte, in a body [s]; it takes that, and what the slowest peer would need, in all."""
    waiting: int = 8
    """Bodies that wait for one dataset [count]…"""
    waiting_in_all: int = 64
    """…and for all, those that arrive included."""
    run_seconds: float = 600.0
    """How long a run may take [s]."""


UPLOADS = UploadLimits()


@dataclass(frozen=True, slots=True)
class LineageLimits:
    """Bounds on questions about where records come from. What is left out is named, not dropped silently."""

    depth: int = 100
    """Derivations that nested answers follow one below the other [levels]; lists have no such bound."""
    rows: int = 1_000
    """Records that are asked about at a time [count]."""
    transactions: int = 100
    """Transactions that are listed for one interval of records [count]; the newest ones."""
    spans: int = 1_000
    """Intervals of records that one answer follows [count]."""
    searched_slices: int = 200
    """Slices that are searched for the record that another one corrects [count], newest first."""
    searched_bytes: int = 1 << 30
    """These slices [bytes]: about ten seconds of hashing."""


LINEAGE = LineageLimits()


@dataclass(frozen=True, slots=True)
class AttestLimits:
    """Bounds on signed statements and on the keys that sign them."""

    statement_bytes: int = 16 << 10
    """One signed statement [bytes]; a signed head has about 550, an attestation 1,100."""
    statement_items: int = 64
    """Items of a list in a statement [count]: checks, engines."""
    statement_text: int = 100
    """A text in a statement [characters]: the name and version of a tool or an engine."""
    attestations_per_head: int = 16
    """Attestations of one head that are kept [count], one for each auditor."""
    attestations_bytes: int = 1 << 20
    """All attestations of a dataset [bytes]: about a thousand."""
    snapshot_signers: int = 16
    """Signers of one kind of document of one block [count]."""
    snapshot_lines_bytes: int = 4 << 20
    """All lines about snapshots of a dataset [bytes]: about six thousand."""
    snapshot_bytes: int = 64 << 20
    """One manifest or profile [bytes]."""
    snapshots_pulled: int = 16
    """Manifests and profiles that a pull brings [count], of the newest blocks; others come on demand."""
    snapshots_pulled_bytes: int = 256 << 20
    """All that one pull brings of them [bytes]."""
    keys_bytes: int = 256 << 10
    """All keys statements of a dataset [bytes]: some four hundred."""
    delegate_days: int = 90
    """How long a delegate may sign where nothing else is said [days]."""
    delegate_warning_days: int = 14
    """How long before a delegate ends its owner is warned [days]."""
    key_file_bytes: int = 16 << 10
    """A file with a private key [bytes]; an ed25519 key has 119."""
    clock_seconds: float = 300.0
    """How far clocks may be apart: a signature whose time is later than that is of the future [s]."""
    evidence_blocks: int = 10_000
    """Blocks of each of the two histories in a proof of equivocation [count]; common ones have under ten."""
    evidence_context: int = 1_000
    """Blocks of both that are added down to where they part, though the proof does not need them [count]."""
    evidence_bytes: int = 64 << 20
    """A proof of equivocation [bytes]."""
    evidence_sightings: int = 100
    """Places and times that are remembered of one proof [count]."""
    note_bytes: int = 16 << 10
    """A checkpoint with its cosignatures [bytes]; each has about 130."""
    note_lines: int = 64
    """Signatures of a checkpoint [count]."""
    witness_seconds: float = 5.0
    """How long a witness is waited for [s]; one that was late is not asked again by the same command."""
    witness_logs: int = 1_000_000
    """Datasets that a witness has in mind [count]."""


ATTEST = AttestLimits()


@dataclass(frozen=True, slots=True)
class AnyPageLimits:
    """Bounds on every HTML page, which stays small enough to be sent by mail."""

    page_bytes: int = 2_000_000
    """The page [bytes]; where it would be larger, all the others are halved until it is not."""
    text: int = 200
    """A name, an id or a value [characters]."""


@dataclass(frozen=True, slots=True)
class PageLimits(AnyPageLimits):
    """Bounds on the page of a verification."""

    message: int = 400
    """A message or the path of a file [characters]."""
    faults: int = 400
    """Faults in full [count], of all datasets together; the JSON report has all."""
    rows: int = 1_000
    """Rows of the tables of blocks [count], of all datasets together."""
    marks: int = 1_600
    """Marks of the time lines [count], of all datasets together."""
    line_marks: int = 160
    """Marks of one time line [count]: more cannot be distinguished on a screen."""
    lines: int = 60
    """Lines of every other list of a dataset [count]."""
    sections: int = 100
    """Datasets that are shown one by one [count]."""
    datasets: int = 1_000
    """Datasets that are listed [count]."""

    def for_each(self, datasets: int) -> PageLimits:
        """The limits for each of so many datasets that share a page."""
        share = max(1, min(datasets, self.sections))
        return replace(
            self,
            faults=max(1, self.faults // share),
            rows=max(4, self.rows // share),
            marks=max(1, min(self.line_marks, self.marks // share)),
        )


PAGE = PageLimits()


@dataclass(frozen=True, slots=True)
class DriftPageLimits(AnyPageLimits):
    """Bounds on the page of a comparison."""

    lines: int = 600
    """Lines of the table of all that was compared [count], and of what was not."""
    columns: int = 300
    """Columns that are shown one by one [count]."""
    values: int = 12
    """Values of a column [count]: those whose shares are furthest apart."""


DRIFT_PAGE = DriftPageLimits()


@dataclass(frozen=True, slots=True)
class CheckPageLimits(AnyPageLimits):
    """Bounds on the page of a check of assets, and on what is kept for it."""

    stores: int = 100
    """Stores that are shown one by one [count]."""
    assets: int = 100
    """Assets of one store and one status [count]."""


CHECK_PAGE = CheckPageLimits()


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """Bounds on what a verification keeps in memory for one dataset."""

    retractions: int = 4_000_000
    """Rows that take others back [count]; about 100 bytes each at the peak, and as much as a GiB of rows."""
    state_rows: int = 8_000_000
    """Records up to a state checkpoint that is computed anew [count]; about 100 bytes each at the peak."""
    merged_bytes: int = 1 << 30
    """Slices of both sides of a merge that is computed anew [bytes]; some ten times that in memory."""


AUDIT = AuditLimits()


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds on what ingestion records by itself (RFC-014)."""

    watermark_step_ms: int = 3_600_000
    """A watermark that follows the system time is recorded without data when it moves by this [ms]: a source
    that is polled every minute must not make a block every minute."""


INGEST_LIMITS = IngestLimits()


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Bounds on files that are ingested (RFC-010). What is larger is refused before Spark sees it."""

    record_bytes: int = 64 << 20
    """One line, one record, or one value that is skipped [bytes]."""
    columns: int = 10_000
    """Columns of one input [count]; a plan of more takes Spark minutes and gigabytes."""
    json_depth: int = 200
    """Nesting of a JSON document [levels]."""
    type_depth: int = 32
    """Nesting of a type that is inferred [levels], as deep as a manifest may declare one."""
    number_characters: int = 1_000
    """One number in JSON [characters]; Spark's JSON parser has the same bound."""
    archive_members: int = 10_000
    """Members of a ZIP archive [count]; each costs a few hundred bytes before anything is read."""
    archive_bytes: int = 4 << 30
    """The unpacked files of one shapefile together [bytes]; the format itself ends at 2 GiB for each."""
    archive_ratio: int = 1_000
    """Unpacked to packed size of a member larger than `ratio_from`; blank-padded text stays below 600."""
    ratio_from: int = 64 << 20
    """Size from which the ratio is looked at [bytes]."""


INPUT = InputLimits()


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Bounds on the SQL of a transform: on its text, and on what Spark would make of it (RFC-016)."""

    steps: int = 100
    """Steps of one transform [count]."""
    text_bytes: int = 64 << 10
    """The SQL of one step [bytes]."""
    brackets: int = 100
    """Brackets within brackets [levels]: Spark's parser recurses, and slows down with every level."""
    nodes: int = 10_000
    """Plans and expressions of one query [count], with every name of a WITH or of an earlier step replaced
    by what it stands for; real ones have some hundreds."""
    columns: int = 100_000
    """Columns of all tables in between [count], fields of structs counted one by one: each level of
    `SELECT *, *` or `struct(a, a)` doubles them."""
    grouping_sets: int = 256
    """Grouping sets of one GROUP BY [count]: CUBE of eight columns. Every row is copied for each set."""
    range_rows: int = 10_000_000
    """Rows that `range` may make up [count]: a calendar by the minute has half a million for each year."""
    reading_seconds: float = 60.0
    """Reading and resolving all steps of one transform [s]; real ones take under two."""


QUERY = QueryLimits()


@dataclass(frozen=True, slots=True)
class AskedLimits:
    """Bounds on SQL that untrusted people ask, and on its answer (RFC-033)."""

    text_bytes: int = 64 << 10
    """The query [bytes]…"""
    brackets: int = 100
    """…its brackets within brackets [levels]…"""
    operators: int = 2_000
    """…and its operators [count]: the planner's time grows with their square, 2,000 `+` take four seconds."""
    seconds: float = 10.0
    """From the question to the answer [s]."""
    starting_seconds: float = 60.0
    """Until the process that answers has loaded its engine [s]: half a second on an idle machine."""
    memory: int = 1 << 30
    """Most bytes of rows; nothing is spilled."""
    rows: int = 10_000
    """Rows of an answer [count]."""
    answer_bytes: int = 16 << 20
    """These rows as Arrow [bytes]."""
    threads: int = 2
    """Threads that compute [count]."""
    piece_bytes: int = 4 << 20
    """Rows that are sent at a time where an answer comes in pieces [bytes]; then `seconds` is for each piece,
    and there may be any number of rows…"""
    stream_seconds: float = 600.0
    """…until the last one [s]: few queries run at a time, and others wait."""


ASKED = AskedLimits()

OWN = AskedLimits(text_bytes=1 << 20)
"""Limits of the text of a user's own query; its time and memory are the user's choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds on what is asked of a server; they come from the workspace's configuration."""

    deadline: float = 3_600.0
    """Longest time from the first request to the last byte [s]."""
    connect_timeout: float = 30.0
    """Longest time to a connection [s]."""
    idle_timeout: float = 60.0
    """Longest time without a byte [s]."""
    bytes_per_second: int = 0
    """The slowest server that is waited for [bytes/s]; a source may be as slow as the deadline lets it."""
    redirects: int = 10
    """Redirects that are followed [count]."""
    retries: int = 4
    """Attempts after the first, on failures that may pass [count]."""
    first_wait: float = 0.5
    """Wait before the first retry [s]; doubles each time."""
    max_bytes: int = 1 << 40
    """Largest body, and largest file after unpacking [bytes]."""
    allow_private: bool = False
    """True if a public address may redirect to a private one."""


@dataclass(frozen=True, slots=True)
class AssetLimits:
    """Bounds on asset locks and on the catalogs that they are made from."""

    rows: int = 10_000_000
    """Rows of one lock [count]."""
    key_bytes: int = 1_024
    """The key of an object [bytes]: what S3 allows."""
    text_bytes: int = 4_096
    """Every other text of a row [bytes]."""
    document_bytes: int = 256 << 20
    """A document of STAC [bytes]; an ItemCollection of 100,000 Items has about 200 MB."""
    documents: int = 1_000_000
    """Documents of one run [count]."""
    catalog_depth: int = 32
    """Catalogs within each other [levels]."""


ASSETS = AssetLimits()

HOST, PORT = "127.0.0.1", 8080
"""The address of a server, when no other is given."""
FLIGHT_PORT = 50_050
"""The port of `sql server`, which is that of kamu's."""
