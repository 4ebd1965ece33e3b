"""A closed DataFusion: it knows no files, no statements that change anything, and no names but given ones.

Queries of datasets (`odfchain.query.embedded`) and of transforms (`datafusion_engine`) are planned in it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import EngineError, OdfchainError, Place, QueryError, QueryLimitError
from odfchain.lazy import pa
from odfchain.limits import ASKED, AskedLimits
from odfchain.odf.arrow_schema import mapped
from odfchain.storage import fsio
from odfchain.text import one_line, place_in

if TYPE_CHECKING:
    import datafusion as df


class GivenTables:
    """The catalog of a context and its one schema, with what was registered and given names in it.

    The planner asks from inside its runtime, where the context cannot be used: everything is looked up.
    """

    table_names: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.registered: dict[str, Any] = {}
        self.given: dict[Any, Any] = {}

    def owner_name(self) -> None:
        """No owner."""

    def schema_names(self) -> set[str]:
        """The name of the schema."""
        return {"public"}

    def schema(self, name: str) -> GivenTables | None:
        """The schema, by its name."""
        return self if name == "public" else None

    def register_table(self, name: str, table: Any) -> None:
        """Keep what the context registers."""
        self.registered[name] = table

    def table_exist(self, name: str) -> bool:
        """True if the context registered it."""
        return name in self.registered

    def table(self, name: str) -> Any:
        """What a name of a query means, if anything."""
        return self.given.get(name, self.registered.get(name))  # those have names by chance


def closed_context(
    tables: GivenTables,
    *,
    memory: int,
    spill: Path | None = None,
    partitions: int | None = None,
    batch_size: int = 8192,
    inexact: bool = False,
    exact_names: bool = False,
) -> df.SessionContext:
    """A context with these tables and `memory` bytes for rows; more rows go to the folder `spill`, if any.

    `inexact` is for tables with floating-point numbers: statistics of Parquet leave NaN out, and the engine
    believes them. With `exact_names` those without quotes keep their capitals.
    """
    library = import_module("datafusion")
    config = library.SessionConfig().with_information_schema(False)
    config = config.with_create_default_catalog_and_schema(False)
    config = config.with_default_catalog_and_schema("odf", "public").with_batch_size(batch_size)
    if partitions is not None:
        config = config.with_target_partitions(partitions)
    if inexact:
        config = config.set("datafusion.execution.collect_statistics", "false")
    if exact_names:
        config = config.set("datafusion.sql_parser.enable_ident_normalization", "false")
    runtime = library.RuntimeEnvBuilder().with_fair_spill_pool(memory)
    if spill is None:
        runtime = runtime.with_disk_manager_disabled()
    else:
        runtime = runtime.with_disk_manager_specified(spill)
    catalog: Any = tables
    context: df.SessionContext = library.SessionContext(config, runtime)
    context.register_catalog_provider("odf", catalog)
    return context


def query_plan(context: df.SessionContext, sql: str, params: dict[str, Any] | None = None) -> df.DataFrame:
    """The plan of one query, which reads and does nothing else."""
    options = import_module("datafusion").SQLOptions()
    options = options.with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    frame = context.sql_with_options(sql, options, param_values=params or None)
    kind = type(frame.logical_plan().to_variant()).__name__
    if kind in ("Explain", "Analyze", "DescribeTable"):
        message = "only queries are answered here"
        raise QueryError(message, hint="--explain shows a plan, `.schema NAME` the columns")
    return frame


_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder in it


def in_memory() -> Path | None:
    """The folder for links to slices in memory, if any: a thousand cost milliseconds, on a disk seconds."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def linked(paths: Sequence[Path], resources: contextlib.ExitStack, folder: Path | None = None) -> Path:
    """A folder in `folder` of links to files, which are read as one table in this order; gone at the end."""
    made = Path(tempfile.mkdtemp(prefix="odfchain-query-", dir=folder or in_memory()))
    # also where the rows are not read
    resources.callback(fsio.remove_at_end(resources, made))
    for number, path in enumerate(paths):
        (made / f"{number:06}.parquet").symlink_to(path)
    return made


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_pylist([], schema)


def view_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with views of text and bytes."""
    # DataFusion compares views of text and bytes faster
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    return pa.schema([pa.field(c.name, views.get(c.type, c.type), c.nullable) for c in schema])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without views, at any depth."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    # at any depth: the engine uses views within lists and structs as well
    found = mapped(schema, lambda f: f.with_type(plain.get(f.type, f.type)))
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in found])


def variant_of(node: Any) -> Any:
    """The variant of a plan's or condition's node; None where the library exposes none (functions)."""
    try:
        return node.to_variant()
    except (ValueError, NotImplementedError, TypeError):
        return None


# Limits on the text of a query, measured in one pass before anything plans it.

# The parts of a query that count; texts and quoted names are skipped.
_PART = re.compile(
    r"""'[^']*+'? | "[^"]*+"? | --[^\n]*+ | /\*(?s:.)*?(?:\*/|\Z)
    | (?P<open>[(\[]) | (?P<close>[)\]])
    | (?P<operator> ::|<=|>=|<>|!=|==|\|\||&&|<<|>>|->>?|[=]> | [-+*/%<>=!~^&|@\#]
      | \b(?:and|or|xor|not|is|in|i?like|similar|between|case|when|union|intersect|except|join|div|collate)\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def check_text(sql: str, limits: AskedLimits = ASKED) -> None:
    """The text is none that is known to hurt the planner; measured in one pass."""
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > limits.text_bytes:
        raise QueryError(f"the query has {size:,} bytes; at most {limits.text_bytes:,} are read")
    if re.search("[\0\ud800-\udfff]", sql):
        raise QueryError("the query has characters that are no text")
    depth = operators = 0
    for part in _PART.finditer(sql):
        depth = max(0, depth + bool(part["open"]) - bool(part["close"]))
        operators += part["operator"] is not None or part["open"] == "["
        if depth > limits.brackets:
            raise QueryError(f"the query has more than {limits.brackets} brackets within brackets")
    if operators > limits.operators:
        message = f"the query has {operators:,} operators; at most {limits.operators:,} are planned"
        raise QueryError(message, hint="many values are given as a list: x IN (…)")


def dotted_name(name: str, instead: str = "") -> QueryError:
    """The error for an unquoted name with dots."""
    message = f"`{one_line(name)}`: a name with dots is written in quotes"
    return QueryError(message, hint=f"write {instead or quoted_name(name)}")


def quoted_name(name: str) -> str:
    """A name as SQL takes it, dots and all."""
    return quoted(one_line(name))


def quoted(name: str) -> str:
    """A name in quotes."""
    return '"' + name.replace('"', '""') + '"'


# Errors of DataFusion as errors of this project, with the place in the query and a hint.

_POSITION = re.compile(r" at Line: (\d+), Column: (\d+)")
_NO_TABLE = re.compile(r"table '(.*)' not found", re.DOTALL)
_NO_COLUMN = re.compile(r"No field named (.*?)\.(?:\s|$)", re.DOTALL)
_VALID = re.compile(r"Valid fields are (.*)\.\s*$", re.DOTALL)
_MEANT = re.compile(r"Did you mean '(.*?)'\?")
_NO_FUNCTION = re.compile(
    r"Invalid function '(\w+)'|table function '(\w+)' not found|There is no (?:UDF )?function (\w+)",
    re.IGNORECASE,
)
_KIND = re.compile(
    r"^(?:DataFusion error: )?(?:Error during planning|Schema error|SQL error|"
    r"This feature is not implemented|Execution error|Arrow error|"
    r"Optimizer rule '\w+' failed|Invalid or Unsupported Configuration|caused by)"
    r"(?:: |\s+)"
)
_LONGEST = 300


@contextlib.contextmanager
def translate_errors(sql: str, tables: Any = None) -> Iterator[None]:
    """What the engine raises inside becomes an error of the project; `tables` keeps what we raised in it."""
    try:
        yield
    except OdfchainError:
        raise
    except (KeyboardInterrupt, TimeoutError, BrokenPipeError):
        raise
    except BaseException as error:
        if tables is not None:
            missing = tables.missing.get(_asked_table(str(error)))
            if found := tables.error or (missing and _no_dataset(missing, str(error), sql)):
                raise found from None
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise explained(str(error), sql) from error


def out_of_memory() -> QueryLimitError:
    """The error for a query that exceeds its memory limit."""
    hint = "give it more with --memory, read fewer columns or rows, or use --engine spark"
    return QueryLimitError("the query needs more memory than it is given", hint=hint)


def explained(text: str, sql: str) -> OdfchainError:
    """The project's error for what the engine said."""
    if (
        "Resources exhausted" in text
        or "memory limit" in text.lower()
        or "alloc of size" in text
        or "memory allocat" in text
    ):
        return out_of_memory()
    if "panicked" in text or "Internal error" in text:
        return EngineError(f"the engine failed: {one_line(text, _LONGEST)}", hint="use --engine spark")
    if found := _NO_TABLE.search(text):
        table = found.group(1).removeprefix("odf.")
        if not table.startswith("public."):
            return dotted_name(table)
        table = table.removeprefix("public.")
        what = f"there is no table {one_line(table, 80)}"
        given = "tables are the inputs and earlier steps; no file is read"
        return QueryError.at("the query", sql, place_of(sql, table), what, hint=given)
    said = _without_kinds(text)
    place: Place | None = None
    hint = None
    if position := _POSITION.search(text):
        place = int(position.group(1)), int(position.group(2))
        said = _POSITION.sub("", said)
        names = re.finditer(r"\w[\w.]*(?:-[\w.]+)+", sql.split("\n")[place[0] - 1])
        if said.endswith("found: -") and (name := next((n[0] for n in names if n.end() >= place[1]), None)):
            hint = f'a name with dots or hyphens is written in quotes: "{name}"'
    elif missing := _NO_COLUMN.search(text):
        name = missing.group(1)
        said = f"there is no column {one_line(name, 80)}"
        hint = _meant(text, name)
        place = place_of(sql, name.rpartition(".")[2].strip('"'))
    elif missing := _NO_FUNCTION.search(text):
        name = next(part for part in missing.groups() if part)
        said = f"there is no function {name}"
        near = re.search(r"Did you mean '?(\w+)'?", text)
        hint = f"did you mean {near.group(1)}?" if near else "a table is a dataset's name; no file is read"
        place = place_of(sql, name)
    if "single SQL statement" in text:
        said, hint = "more than one statement", "one query is answered at a time"
    elif sql.lower().split(maxsplit=1)[:1] in (["insert"], ["update"], ["delete"]):
        said, hint = "it would change rows", "only queries are answered; `odfchain correct` changes rows"
    elif "not supported" in text or "Unsupported SQL statement" in text:
        hint = hint or "only queries are answered: nothing is changed, and no file is named"
    elif unset := re.search(r"Placeholder '\$(\w+)' was not provided", text):
        said, hint = f"${unset[1]} has no value", f"give it: --param {unset[1]}=VALUE"
    elif "No SQL statements" in text:
        said, hint = "no query given", "write one, like: select count(*) from airports"
    return QueryError.at("the query", sql, place, said.strip(), hint=hint)


def _without_kinds(text: str) -> str:
    said = (
        re.split(r"\.?\s+(?:Valid fields|Did you mean)", text)[0]
        .partition("\n\nBacktrace")[0]
        .partition("\nbacktrace")[0]
    )
    parser = re.search(r'(?:ParserError|TokenizerError)\("(.*)"\)', said, re.DOTALL)
    if parser:
        said = parser.group(1)
    while (shorter := _KIND.sub("", said)) != said:
        said = shorter
    return one_line(said.partition("\n")[0], _LONGEST).removesuffix(".")


def _asked_table(text: str) -> str:
    found = _NO_TABLE.search(text)
    return found.group(1).removeprefix("odf.public.") if found else ""


def _no_dataset(error: OdfchainError, text: str, sql: str) -> OdfchainError:
    name = _asked_table(text)
    # the error gets the place of the table's name in the query
    place = place_of(sql, name)
    if place is not None and sql.split("\n")[place[0] - 1][place[1] - 1] == "'":
        what = f"'{one_line(name, 80)}' is a text, and no file is read"
        return QueryError.at("the query", sql, place, what, hint="a table is a dataset's name")
    if isinstance(error, QueryError):
        return QueryError.at("the query", sql, place, error.message, hint=error.hint)
    return error


def _meant(text: str, name: str) -> str | None:
    if near := _MEANT.search(text):
        return f"did you mean {one_line(near.group(1), 80)}?"
    listed = _VALID.search(text)
    if listed is None:
        return None
    valid = [part.strip() for part in listed.group(1).split(", ")]
    short = {part.rpartition(".")[2]: part for part in valid}
    close = difflib.get_close_matches(name.rpartition(".")[2], short, n=3)
    if close:
        return f"did you mean {' or '.join(one_line(part, 80) for part in close)}?"
    return f"columns here are {', '.join(one_line(part, 80) for part in list(short)[:30])}"


def place_of(sql: str, name: str) -> tuple[int, int] | None:
    """(line, column) of a name in a query, both from 1; None where it is not one word of it."""
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import SqlglotError

    try:
        tokens = Postgres().tokenize(sql)
    except SqlglotError:
        return None
    named = (token.start for token in tokens if token.text == name or token.text.lower() == name)
    start = next(named, None)
    return None if start is None else place_in(sql, start)
