"""Dataclasses and plain trees, both ways: the YAML/JSON form of metadata.

Rules (RFC-013 of ODF): property names in lowerCamelCase; a union is an object whose `kind` names the
variant; variants and enum values are read in PascalCase, camelCase or lower case and printed in PascalCase;
absent optional properties are not printed, empty lists are; unknown properties are errors. Errors name the
path in the document.

Two spellings of schemas are known: 0.34.1 calls the DDL list of a read step and the raw Arrow bytes of
`SetDataSchema` both `schema`, 0.38 and later call them `ddlSchema` and `rawArrowSchema`. Both are read (they
differ in type); which is printed is the caller's choice (RFC-005).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import struct
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from odfchain.errors import InvalidIdError, ManifestError, OdfchainError, child_path
from odfchain.odf import events, schema, sources
from odfchain.odf.block_codec import field_defaults, field_types, without_none
from odfchain.odf.canonical_json import strict_json
from odfchain.odf.flatbuffers import SCALARS, load_fbs
from odfchain.odf.names import DatasetRefAny, parse_ref_any
from odfchain.odf.schema import ExtraAttributes
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.transform_options import ALLOWED_LATENESS, lateness_option, split_version

T = TypeVar("T")

SHORT_FORMS = (schema.DataType, sources.EventTimeSource, sources.SourceCaching)
"""Unions whose variants without properties may be written as a bare name (`cache: Forever`)."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the objects of a class with this as `FORM` differ from those of manifests."""

    snake_case: bool = False
    """Properties are called as the fields are."""
    others: bool = False
    """Unknown properties are passed over."""
    nulls: bool = False
    """None is written as null, and read from it."""
    whole: bool = False
    """No property may be missing, whatever its default…"""
    omits: bool = False
    """…unless None is allowed."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Properties that are called otherwise than their fields."""


_MANIFESTS = Form()


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound of a field, as `Annotated[TYPE, Rule(…)]`; a `range` is the bound of an integer."""

    expected: str
    """What the value must be, in words."""
    test: Callable[[Any], object]


def sized(low: int, high: int, what: str) -> Rule:
    """The rule that a text or a list has so many characters or items."""
    return Rule(f"{what} of {low:,} to {high:,}", lambda value: low <= len(value) <= high)


COUNT = range(1 << 63)
"""The bound of what is counted: a signed integer of 64 bits holds it."""

# Values whose text is what a document has.
_PRINTED = typing.get_args(DatasetRefAny)


def _is_text(value: Any) -> bool:
    # made from text by a `parse` of its class, and no object
    return hasattr(value, "parse") and not hasattr(value, "FORM")


def camel_case(name: str) -> str:
    """`prev_block_hash` as `prevBlockHash`."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def record_of(value: object, *names: str) -> dict[str, Any]:
    """These properties in camel case, what JSON lacks as text; `blockHash:ref.block` is at `ref.block`."""
    found = {}
    for name in names:
        key, _, path = name.rpartition(":")
        found[key or camel_case(name)] = _in_document(_found_at(value, path))
    return found


def _found_at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _in_document(value: Any) -> Any:
    match value:
        case None | str() | int() | float():
            return value
        case Enum():
            return value.value
        case tuple() | list():
            return [_in_document(each) for each in value]
    return str(value)


def spellings(name: str) -> tuple[str, str, str]:
    """The three accepted spellings of a variant or enum value; the first is printed."""
    return name, name[0].lower() + name[1:], name.lower()


# --- reading ---------------------------------------------------------------------------------------


def from_tree(cls: type[T], value: Any, path: str = "", **given: Any) -> T:
    """Parse a tree into a dataclass, enum or value type; it has no properties for the `given` fields."""
    result: T = _read_object(cls, value, path, given) if given else _read(cls, value, path)
    return result


def read_json(cls: type[T], data: str | bytes, most: int) -> T:
    """The value of a JSON text of at most so many bytes, or `ManifestError`."""
    if len(data) > most:
        raise ManifestError(f"larger than {most:,} bytes")
    return from_tree(cls, strict_json(data))


def _read(hint: Any, value: Any, path: str) -> Any:
    if hint is str:
        return _expect(str, value, path, "text")
    if isinstance(hint, range):
        return _read_int(hint, value, path)
    if hint is int:
        return _read_int(range(1 << 64), value, path)
    if hint is float:
        return _read_float(value, path)
    if hint is Any:
        return value
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _read_bounded(hint.__origin__, hint.__metadata__, value, path)
    if origin is Literal:
        (only,) = typing.get_args(hint)
        if type(value) is not type(only) or value != only:
            raise ManifestError(f"must be {only!r}, not {describe(value)}", path=path)
        return only
    if origin in (dict, Mapping):
        name, member = typing.get_args(hint)
        return _read_members(name, member, _expect(dict, value, path, "an object"), path)
    if hint is bool:
        return _expect(bool, value, path, "true or false")
    if hint is bytes:
        return _read_base64(value, path)
    if _is_text(hint) or hint == DatasetRefAny:
        text = _expect(str, value, path, "text")
        try:
            return hint.parse(text) if _is_text(hint) else parse_ref_any(text)
        except OdfchainError as error:
            raise ManifestError(str(error), path=path, hint=error.hint) from None
    if hint is ExtraAttributes:
        return ExtraAttributes(_expect(dict, value, path, "an object"))
    if origin is tuple:
        item = typing.get_args(hint)[0]
        items = _expect(list, value, path, "a list")
        return tuple(_read(item, v, child_path(path, i)) for i, v in enumerate(items))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _read_enum(hint, value, path)
    variants = union_variants(hint)
    return _read_union(hint, variants, value, path) if variants else _read_object(hint, value, path)


def _read_members(name: Any, member: Any, members: dict[str, Any], path: str) -> dict[Any, Any]:
    found, (member, optional) = {}, without_none(member)
    for key, item in members.items():
        here = child_path(path, key)
        found[_read(name, key, here)] = None if item is None and optional else _read(member, item, here)
    return found


def _expect(kind: type[T], value: Any, path: str, what: str) -> T:
    if not isinstance(value, kind):
        raise ManifestError(f"must be {what}, not {describe(value)}", path=path)
    return value


def describe(value: Any) -> str:
    """The kind of a tree value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value)} characters"
        case list():
            return "a list"
    return "an object"


def _read_bounded(hint: Any, rules: tuple[Any, ...], value: Any, path: str) -> Any:
    if isinstance(rules[0], range):
        return _read_int(rules[0], value, path)
    found = _read(hint, value, path)
    try:
        for rule in rules:
            if not rule.test(found):
                raise ManifestError(f"must be {rule.expected}", path=path)
    except OdfchainError as error:
        raise ManifestError(error.message, path=path, hint=error.hint) from None
    return found


def _read_int(bounds: range, value: Any, path: str) -> int:
    # a bool is an int in Python, and `true` is no number in a document
    if isinstance(value, bool) or not isinstance(value, int):
        raise ManifestError(f"must be an integer, not {describe(value)}", path=path)
    if value not in bounds:
        raise ManifestError(f"{value} is outside {bounds.start} to {bounds.stop - 1}", path=path)
    return value


def _read_float(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ManifestError(f"must be a number, not {describe(value)}", path=path)
    return float(value)


def _read_base64(value: Any, path: str) -> bytes:
    if isinstance(value, bytes):  # a document of another form has them as they are
        return value
    text = _expect(str, value, path, "base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ManifestError("is not standard base64 with padding", path=path) from None


def suggest(word: str, known: list[str]) -> str:
    """The known word that was meant, or all of them."""
    import difflib  # noqa: PLC0415 - only for the message

    by_case = [name for name in known if name.lower() == word.lower()]
    close = by_case or difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


@lru_cache
def _enum_spellings(cls: type[Enum]) -> dict[str, Enum]:
    return {text: member for member in cls for text in spellings(member.value)}


def _read_enum(cls: type[Enum], value: Any, path: str) -> Enum:
    text = _expect(str, value, path, "text")
    found = _enum_spellings(cls).get(text)
    if found is None:
        known = [str(member.value) for member in cls]
        raise ManifestError(f"unknown value {text!r} ({suggest(text, known)})", path=path)
    return found


@lru_cache
def union_variants(hint: Any) -> dict[str, type[Any]] | None:
    """Spellings of `kind` and their dataclasses, when the hint is a union of tagged dataclasses."""
    members = typing.get_args(hint) or (hint,)
    if not all(isinstance(m, type) and hasattr(m, "KIND") for m in members):
        return None
    return {text: cls for cls in members for text in spellings(cls.KIND)}


def _read_union(hint: Any, variants: dict[str, type[Any]], value: Any, path: str) -> Any:
    if isinstance(value, str) and hint in SHORT_FORMS:
        value = {"kind": value}
    tree = _expect(dict, value, path, "an object with a 'kind'")
    if "kind" not in tree:
        raise ManifestError("the property 'kind' is missing", path=path)
    kind = tree["kind"]
    cls = variants.get(kind) if isinstance(kind, str) else None
    if cls is None:
        known = list(dict.fromkeys(c.KIND for c in variants.values()))
        what = f"unknown kind {kind!r}" if isinstance(kind, str) else f"must be text, not {describe(kind)}"
        raise ManifestError(f"{what} ({suggest(str(kind), known)})", path=child_path(path, "kind"))
    return _read_object(cls, {k: v for k, v in tree.items() if k != "kind"}, path)


def _form(cls: type[Any]) -> Form:
    form: Form = getattr(cls, "FORM", _MANIFESTS)
    return form


_PROPERTIES: dict[type[Any], dict[str, tuple[str, Any, bool]]] = {}


def properties_of(cls: type[Any]) -> dict[str, tuple[str, Any, bool]]:
    """Property name to (field name, type, whether None is allowed), in schema order.

    The type of an integer is the range that its FlatBuffers field can hold (uint64 where there is none).
    """
    if cls not in _PROPERTIES:
        form = _form(cls)
        table = load_fbs("odf.fbs").tables.get(cls.__name__)
        scalars = {f.name: f.type_name for f in table.fields} if table else {}
        _PROPERTIES[cls] = {
            form.names.get(name) or (name if form.snake_case else camel_case(name)): (
                name,
                _integer_range(scalars.get(name, "uint64")) if hint is int else hint,
                optional,
            )
            for name, (hint, optional) in field_types(cls).items()
        }
    return _PROPERTIES[cls]


def _integer_range(scalar: str) -> range:
    code = SCALARS[scalar]
    bits = 8 * struct.calcsize("<" + code)
    return range(1 << bits) if code.isupper() else range(-(1 << (bits - 1)), 1 << (bits - 1))


_NONE: Mapping[str, Any] = {}


@lru_cache
def _defaults(cls: Any) -> dict[str, Any]:
    return field_defaults(cls)


def _read_object(cls: Any, value: Any, path: str, given: Mapping[str, Any] = _NONE) -> Any:
    if isinstance(value, str) and hasattr(cls, "SHORT"):
        value = {cls.SHORT: value}
    tree = _expect(dict, value, path, "an object")
    tree = _newer_spelling(cls, tree, path)
    properties, defaults, form = properties_of(cls), _defaults(cls), _form(cls)
    for key in tree:
        if (key not in properties or properties[key][0] in given) and not form.others:
            known = list(properties)
            hint = suggest(key, known) if known else "it has no properties"
            raise ManifestError(f"unknown property {key!r} ({hint})", path=path)
    values = dict(given)
    for key, (name, hint, optional) in properties.items():
        if name in given:
            continue
        if key not in tree:
            if optional and form.omits:
                values[name] = None
            elif name not in defaults or form.whole:
                raise ManifestError(f"the property {key!r} is missing", path=path)
            continue
        item = tree[key]
        may_be_null = not form.whole and hint is not Timestamp and hint is not bytes
        if item is None and optional and (form.nulls or may_be_null):
            values[name] = None if form.nulls else defaults.get(name)
            continue
        values[name] = _read(hint, item, child_path(path, key))
    return cls(**values)


def _newer_spelling(cls: type[Any], tree: dict[str, Any], path: str) -> dict[str, Any]:
    """`tree` with the 0.34.1 property `schema` renamed to what newer versions call it; options settled."""
    if cls is sources.TransformSql:
        return _with_options(tree, path)
    schema = tree.get("schema")
    if schema is None:
        return tree
    if cls is events.SetDataSchema and isinstance(schema, str):
        newer = "rawArrowSchema"
    elif "ddl_schema" in {f.name for f in dataclasses.fields(cls)} and isinstance(schema, list):
        newer = "ddlSchema"
    else:
        return tree
    if newer in tree:
        raise ManifestError(f"'schema' and {newer!r} say the same thing twice", path=path)
    return {newer if key == "schema" else key: item for key, item in tree.items()}


# --- printing --------------------------------------------------------------------------------------


def to_tree(value: Any, *, spelling: str = "0.34.1") -> Any:
    """The tree of a dataclass: `kind` first, then properties in schema order.

    `spelling` is "0.34.1" (DDL lists and raw Arrow bytes are called `schema`) or "0.39" (`ddlSchema`,
    `rawArrowSchema`). With an ODF schema object among them, the newer names are always used.
    """
    match value:
        case None | bool() | int() | str() | float():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case Enum():
            return value.value
        case tuple() | list():
            return [to_tree(item, spelling=spelling) for item in value]
        case dict():
            return {to_tree(key): to_tree(item, spelling=spelling) for key, item in value.items()}
        case ExtraAttributes():
            return _sorted(value.entries)
        case _ if _is_text(value) or isinstance(value, _PRINTED) or not dataclasses.is_dataclass(value):
            return str(value)
    tree: dict[str, Any] = {"kind": value.KIND} if hasattr(value, "KIND") else {}
    nulls = _form(type(value)).nulls
    for key, (name, _, _) in properties_of(type(value)).items():
        item = getattr(value, name)
        if item is not None or nulls:
            tree[key] = to_tree(item, spelling=spelling)
    short: Any = getattr(value, "SHORT", None)
    if list(tree) == [short]:
        return tree[short]
    return _older_spelling(tree) if spelling == "0.34.1" else tree


def _older_spelling(tree: dict[str, Any]) -> dict[str, Any]:
    # an ODF schema has no other name, so what is next to it needs the newer names
    if "schema" in tree:
        return tree
    return {("schema" if key in ("ddlSchema", "rawArrowSchema") else key): item for key, item in tree.items()}


def _sorted(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list() | tuple():
            return [_sorted(item) for item in value]
    return value


POLLING_SOURCE = "default"
"""Name under which what belongs to the polling source is kept."""


def _with_options(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The tree of a transform with its options in the version."""
    given = tree.get(ALLOWED_LATENESS)
    rest = {key: value for key, value in tree.items() if key != ALLOWED_LATENESS}
    if given is None:
        return rest
    here = f"{path}.{ALLOWED_LATENESS}" if path else ALLOWED_LATENESS
    hint = "write it like 1 day, 36 hours or 90m"
    if not isinstance(given, str):
        raise ManifestError("must be a length of time", path=here, hint=hint)
    try:
        lateness = Duration.parse(given).milliseconds
    except InvalidIdError as error:
        raise ManifestError(str(error), path=here, hint=error.hint) from None
    if lateness % 1_000:
        raise ManifestError(f"{given!r} is not a number of whole seconds", path=here, hint=hint)
    version = rest.get("version")
    if isinstance(version, str) and split_version(version)[1]:
        raise ManifestError("the version says it already", path=here, hint="say it once")
    if lateness:
        rest["version"] = (version if isinstance(version, str) else "") + lateness_option(lateness)
    return rest
