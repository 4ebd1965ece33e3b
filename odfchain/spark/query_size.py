"""How large a query becomes, counted before Spark resolves it.

A short text can mean a huge plan: CUBE doubles with every column, a WITH that uses the one before it twice
doubles with every line, `SELECT *, *` doubles the columns. Spark finds out by building it, and is gone for
minutes or out of memory. Here the same is counted with numbers instead of plans, from the leaves upward: of
every table its nodes, its columns with their fields, and what all tables beneath it had of both. Where the
count cannot be exact it is too high: a column that is not known weighs as much as the heaviest one.
Source: RFC-016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from odfchain.limits import QUERY
from odfchain.spark.query_refusals import items, option

if TYPE_CHECKING:
    from odfchain.spark.plans import PlanNodes, PlanWalker
    from odfchain.spark.query_refusals import StepChecker


_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
# Functions whose result holds all of their arguments; that of others holds one of them at most.
_COMPOSING = frozenset({"arrays_zip", "map", "map_from_arrays", "map_zip_with", "named_struct", "struct"})
_STRUCTS = frozenset({"CreateNamedStruct", "CreateStruct"})
_SUBQUERIES = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
_STARS = frozenset({"UnresolvedStar", "UnresolvedStarExcept", "UnresolvedStarExceptOrReplace"})
_BY_SCHEMA = frozenset({"from_csv", "from_json"})
# Columns that a generator may add to the fields of its argument: a position, a key, a value.
_GENERATED = 3

_COMMENTS = ("--", "/*")


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table: what it is made of, and what it has."""

    nodes: int = 1
    """Plans and expressions, with every name replaced by its definition."""
    cells: int = 0
    """Columns of this table and of all beneath it."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """The fields of each named column; those of several columns of one name together."""
    unnamed: int = 0
    """The fields of all others."""
    heaviest: int = 1
    """The fields of the largest column, named or not."""
    aliases: Mapping[str, int] = field(default_factory=dict)
    """The width of each table that is put together here, by its name."""

    @classmethod
    def of(cls, columns: Mapping[str, int], nodes: int = 1) -> TableSize:
        """A table with these columns; each is given with the number of its fields."""
        return cls(nodes, 0, columns, heaviest=max(columns.values(), default=1))

    @property
    def width(self) -> int:
        """Fields of all columns."""
        return sum(self.columns.values()) + self.unnamed


def _too_many(sets: int) -> tuple[str, str]:
    return (
        f"makes {shown_count(sets)} grouping sets, more than {QUERY.grouping_sets:,}",
        "name the sets that are needed: GROUPING SETS ((a, b), (a), ())",
    )


def shown_count(number: int) -> str:
    """A number as people write it, also where it has hundreds of digits."""
    return f"{number:,}" if number < 10**15 else f"about 10^{len(str(number)) - 1}"


@dataclass(frozen=True, slots=True)
class _ExpressionSize:
    """An expression: its nodes, the fields of its value, and what it is called where it is a column."""

    nodes: int = 1
    fields: int = 1
    name: str | None = None
    kind: str = ""
    made: tuple[TableSize, ...] = ()
    """The tables of queries within it."""


class _Expressions:
    def __init__(self, walker: PlanWalker, found: PlanNodes, own: Sequence[int]) -> None:
        self.nodes = found
        self.kinds = [_short(name) for name in found.classes]
        self.children = walker.children(found)
        sizes = _subtrees(self.children)
        self.roots: list[list[range]] = []
        begin = 0
        for count in own:
            roots = []
            for _ in range(count):
                roots.append(range(begin, begin + sizes[begin]))
                begin += sizes[begin]
            self.roots.append(roots)
        self.names: dict[int, str] = {}
        for kind, owner, method in (
            ("UnresolvedAttribute", _ANALYSIS + "UnresolvedAttribute", "name"),
            ("Alias", _EXPRESSIONS + "Alias", "name"),
        ):
            if places := found.of(kind):
                self.names |= dict(zip(places, walker.texts(found, owner, method), strict=True))


class PlanMeasure:
    """Counts one step; raises a `QueryError` as soon as a table is too large."""

    def __init__(self, walker: PlanWalker, checker: StepChecker) -> None:
        self._walker, self._checker = walker, checker

    def check_cubes(self, tokens: Sequence[str]) -> None:
        """No CUBE has more grouping sets than may be, nor all of a text more than a plan may have nodes."""
        # tokens of the text, since Spark's parser already writes some grouping sets out
        total = 0
        for i, token in enumerate(tokens):
            if token.upper() != "CUBE":
                continue
            depth, elements = 0, 1
            for other in tokens[i + 1 :]:
                if depth == 0 and other != "(":
                    if other.isspace() or other.startswith(_COMMENTS):
                        continue
                    break
                depth += (other == "(") - (other == ")")
                if depth == 0:
                    break
                elements += depth == 1 and other == ","
            total += 1 << elements
            if 1 << elements > QUERY.grouping_sets or total > QUERY.nodes:
                before = "".join(tokens[:i])
                place = before.count("\n") + 1, len(before) - before.rfind("\n")
                raise self._checker.refuse_at(place, f"{token}(…)", *_too_many(max(total, 1 << elements)))

    def table(self, plan: Any, scope: Mapping[str, TableSize], outer: int = 1) -> TableSize:
        """The size of the table that a plan of Spark's parser makes over the tables of `scope`."""
        plans = self._walker.plans(plan)
        children = self._walker.children(plans)
        scopes = self._scopes(plans, children, scope)
        own = self._walker.own_expressions(plans)
        expressions = _Expressions(self._walker, self._walker.expressions(plan), own)
        stack: list[TableSize] = []
        for i in reversed(range(len(children))):  # pre-order, read backward: children come before parents
            below = [stack.pop() for _ in range(children[i])]
            around = _NameScope(below, scopes[i], max([outer, *(size.heaviest for size in below)]))
            values = [self._value(expressions, root, around) for root in expressions.roots[i]]
            made = self._made(_short(plans.classes[i]), plans[i], below, values, scopes[i])
            made = replace(made, cells=made.cells + made.width)
            self._check(made, plans[i])
            stack.append(made)
        return stack.pop()

    def _scopes(
        self, plans: PlanNodes, children: Sequence[int], scope: Mapping[str, TableSize]
    ) -> list[Mapping[str, TableSize]]:
        sizes, scopes = _subtrees(children), [scope] * len(children)
        for i in plans.of("UnresolvedWith"):
            known = dict(scopes[i])
            for relation in items(plans[i].innerChildren()):
                known[str(relation.alias())] = self.table(relation, known)
            scopes[i : i + sizes[i]] = [known] * sizes[i]
        return scopes

    def _check(self, size: TableSize, plan: Any) -> None:
        if size.nodes > QUERY.nodes:
            raise self._checker.refuse(
                plan,
                f"grows to {shown_count(size.nodes)} nodes as a plan, more than {QUERY.nodes:,}",
                "name the same table or query fewer times",
            )
        if size.cells > QUERY.columns:
            raise self._checker.refuse(
                plan,
                f"makes {shown_count(size.cells)} columns on the way to its result, more than "
                f"{QUERY.columns:,}",
                "name the columns that are needed instead of `*`, and each of them once",
            )

    # --- tables ----------------------------------------------------------------------------------

    def _made(
        self,
        kind: str,
        plan: Any,
        below: Sequence[TableSize],
        values: Sequence[_ExpressionSize],
        scope: Mapping[str, TableSize],
    ) -> TableSize:
        inside = [size for value in values for size in value.made]
        first = below[0] if below else TableSize(nodes=0)
        plain = replace(
            first,
            nodes=1 + sum(s.nodes for s in (*below, *inside)) + sum(v.nodes for v in values),
            cells=sum(s.cells for s in (*below, *inside)),
        )
        match kind:
            case "UnresolvedRelation":
                name = ".".join(str(part) for part in items(plan.multipartIdentifier()))
                table = scope.get(name, TableSize())
                return replace(table, nodes=table.nodes + 1, aliases={name: table.width})
            case "SubqueryAlias":
                return replace(plain, aliases={str(plan.alias()): first.width})
            case "Join" | "LateralJoin":
                return _joined(plain, [*below, *(inside if kind == "LateralJoin" else ())])
            case "Project":
                return _of_columns(plain, first, values)
            case "Aggregate":
                return self._grouped(plan, plain, first, values)
            case "Generate" | "UnresolvedTableValuedFunction":
                more = sum(value.fields for value in values) + _GENERATED
                return replace(plain, unnamed=first.unnamed + more, heaviest=max(first.heaviest, more))
            case "UnresolvedInlineTable":
                most = max((value.fields for value in values), default=1)
                return replace(plain, unnamed=plan.names().size() * most, heaviest=most)
            case "Pivot":
                return _pivoted(plan, plain, values)
            case "Unpivot":
                return replace(plain, nodes=plain.nodes + len(values) * max(1, first.width))
            case "UnresolvedSubqueryColumnAliases" | "UnresolvedTVFAliases":
                return replace(plain, columns={}, unnamed=first.width)
        return plain

    def _grouped(
        self, plan: Any, plain: TableSize, first: TableSize, values: Sequence[_ExpressionSize]
    ) -> TableSize:
        keys = plan.groupingExpressions()
        sets = 1
        for key in items(keys):
            sets *= self._sets(key)
            if sets > QUERY.grouping_sets:
                raise self._checker.refuse(key, *_too_many(sets))
        count = keys.size()
        made = _of_columns(plain, first, values[count:])
        if sets == 1:
            return made
        # Spark makes every row anew for each set
        copies = sets * (first.width + sum(value.nodes for value in values[:count]))
        return replace(made, nodes=made.nodes + copies)

    @staticmethod
    def _sets(key: Any) -> int:
        kind = _short(key.getClass().getName())
        if kind not in ("Cube", "Rollup", "GroupingSets"):
            return 1
        count = int(key.groupingSetIndexes().size())
        return {"Cube": 1 << count, "Rollup": count + 1}.get(kind, count)

    # --- expressions -----------------------------------------------------------------------------

    def _value(self, expressions: _Expressions, root: range, around: _NameScope) -> _ExpressionSize:
        stack: list[_ExpressionSize] = []
        for i in reversed(root):
            children = [stack.pop() for _ in range(expressions.children[i])]
            stack.append(self._of(expressions, i, children, around))
        return stack.pop()

    def _of(
        self, expressions: _Expressions, i: int, children: Sequence[_ExpressionSize], around: _NameScope
    ) -> _ExpressionSize:
        kind = expressions.kinds[i]
        if kind in _STARS:
            return _ExpressionSize(1, around.star(expressions.nodes[i]), kind=kind)
        if kind == "UnresolvedAttribute":
            parts = expressions.names[i].replace("`", "").split(".")
            return _ExpressionSize(1, around.fields(parts), parts[-1])
        nodes = 1 + sum(child.nodes for child in children)
        made = tuple(size for child in children for size in child.made)
        each = [child.fields for child in children]
        fields = sum(each) if kind in _STRUCTS or kind == "MultiAlias" else max(each, default=1)
        if kind in _SUBQUERIES:
            size = self.table(expressions.nodes[i].plan(), around.scope, around.heaviest)
            made, fields = (*made, size), size.heaviest
        if kind in ("UnresolvedFunction", "UnresolvedGenerator"):
            fields = _called(expressions.nodes[i], kind, children)
        if kind == "Cast":
            fields = max(fields, str(expressions.nodes[i].dataType().json()).count('"name"'))
        return _ExpressionSize(nodes, fields, expressions.names.get(i), kind, made)


@dataclass(frozen=True, slots=True)
class _NameScope:
    below: Sequence[TableSize]
    scope: Mapping[str, TableSize]
    heaviest: int

    def fields(self, parts: Sequence[str]) -> int:
        known = [size.columns[part] for size in self.below for part in parts if part in size.columns]
        return max(known, default=self.heaviest)

    def star(self, node: Any) -> int:
        target = option(node.target())
        names = [str(part) for part in items(target)] if target is not None else []
        for size in self.below:
            if len(names) == 1 and names[0] in size.aliases:
                return size.aliases[names[0]]
        if any(name in size.columns for size in self.below for name in names):
            return self.fields(names)
        return sum(size.width for size in self.below)


def _called(node: Any, kind: str, children: Sequence[_ExpressionSize]) -> int:
    name = str(node.name() if kind == "UnresolvedGenerator" else node.nameParts().last()).lower()
    plain = [child.fields for child in children if child.kind != "LambdaFunction"]
    # what a lambda makes of each field it makes of all of them
    per_field = max((child.fields for child in children if child.kind == "LambdaFunction"), default=1)
    fields = sum(plain) if name in _COMPOSING else max(plain, default=1)
    if name in _BY_SCHEMA:
        fields = max(fields, str(node).count(",") + 1)
    return fields * per_field


def _of_columns(plain: TableSize, first: TableSize, values: Sequence[_ExpressionSize]) -> TableSize:
    columns: dict[str, int] = {}
    unnamed, heaviest = 0, 1
    for value in values:
        if value.kind in _STARS:
            heaviest = max(heaviest, first.heaviest)
            if value.fields == first.width:
                for name, fields in first.columns.items():
                    columns[name] = columns.get(name, 0) + fields
                unnamed += first.unnamed
            else:
                unnamed += value.fields
        elif value.name is not None:
            columns[value.name] = columns.get(value.name, 0) + value.fields
            heaviest = max(heaviest, value.fields)
        else:
            unnamed += value.fields
            heaviest = max(heaviest, value.fields)
    return replace(plain, columns=columns, unnamed=unnamed, heaviest=heaviest, aliases={})


def _joined(plain: TableSize, tables: Sequence[TableSize]) -> TableSize:
    columns: dict[str, int] = {}
    aliases: dict[str, int] = {}
    for size in tables:
        aliases |= size.aliases
        for name, fields in size.columns.items():
            columns[name] = columns.get(name, 0) + fields
    unnamed, heaviest = sum(s.unnamed for s in tables), max(s.heaviest for s in tables)
    return replace(plain, columns=columns, unnamed=unnamed, heaviest=heaviest, aliases=aliases)


def _pivoted(plan: Any, plain: TableSize, values: Sequence[_ExpressionSize]) -> TableSize:
    # each value becomes a column for each aggregate, and each is computed on its own
    count = plan.pivotValues().size()
    columns = count * plan.aggregates().size()
    nodes = plain.nodes + count * sum(value.nodes for value in values[-plan.aggregates().size() :])
    return replace(plain, nodes=nodes, unnamed=plain.unnamed + columns * plain.heaviest)


def _subtrees(children: Sequence[int]) -> list[int]:
    sizes = [0] * len(children)
    stack: list[int] = []
    # nodes are in pre-order, so from the end all children come before their parent
    for i in reversed(range(len(children))):
        sizes[i] = 1 + sum(stack.pop() for _ in range(children[i]))
        stack.append(sizes[i])
    return sizes


def _short(name: str) -> str:
    return name.rpartition(".")[2]
