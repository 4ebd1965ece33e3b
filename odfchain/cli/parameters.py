"""Arguments and options that several commands have: their types, their completion, their help."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click

from odfchain.cli.context import Globals
from odfchain.cli.screen import WIDE, echo
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import Timestamp, Workspace
    from odfchain.results import PeerUrl


class NameParam(click.ParamType[str]):
    """A name or reference; completes those that the workspace has, from what is typed already."""

    def __init__(self, name: str, names: Callable[[Workspace, click.Context, str], Iterable[object]]) -> None:
        self.name, self._names = name, names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from odfchain import Workspace

        del param
        try:
            workspace = Workspace.open(ctx.ensure_object(Globals).workspace or ".")
            names = list(map(str, self._names(workspace, ctx, incomplete)))
        except OdfchainError:
            return []
        return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


def _aliases(workspace: Workspace, *_: object) -> list[object]:
    return [dataset.alias for dataset in workspace]


def _references(workspace: Workspace, dataset: str) -> list[str]:
    try:
        return ["head", *workspace[dataset].branch_names]
    except OdfchainError:  # it cannot be read: nothing is offered
        return []


def _points(workspace: Workspace, _: click.Context, incomplete: str) -> list[object]:
    name, at, _rest = incomplete.partition("@")
    return [f"{name}@{each}" for each in _references(workspace, name)] if at else _aliases(workspace)


def _branches(workspace: Workspace, ctx: click.Context, _: str) -> list[object]:
    # of `DATASET… BRANCH` a single argument is parsed as the branch
    given = [ctx.params.get(name) for name in ("dataset", "datasets", "branch")]
    found = next((value for value in (*given, *ctx.args) if value), "")  # args: before an option's value
    dataset = (found if isinstance(found, str) else str(found[0])).partition("@")[0]
    return [*_references(workspace, dataset)[1:]]


DATASET = NameParam("dataset", _aliases)
DATASETS = NameParam("dataset", lambda *typed: [*_branches(*typed), *_aliases(*typed)])
DATASET_AT = NameParam("dataset", _points)
BRANCH = NameParam("branch", _branches)
TOKEN = NameParam("token", lambda workspace, *_: (token.name for token in workspace.tokens.list()))
REPOSITORY = NameParam("repository", lambda workspace, *_: (r.name for r in workspace.repositories.list()))


_SEVERAL = {"tuple", "Iterable", "Mapping", "Sequence", "Collection"}
_LONGEST_MS = 36_525 * 86_400_000


class DurationParam(click.ParamType[float]):
    """A length of time such as `60s`, `5m`, `1h`; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from odfchain import Duration

        try:
            milliseconds = Duration.parse(str(value)).milliseconds
        except OdfchainError:
            milliseconds = 0
        if milliseconds == 0:
            self.fail(f"{value!r} is not a length of time like 60s, 5m or 1h", param, ctx)
        if milliseconds > _LONGEST_MS:
            self.fail(f"{value!r} is longer than a hundred years", param, ctx)
        return milliseconds / 1_000


_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


class SizeParam(click.ParamType[int]):
    """A number of bytes such as `500m` or `2g`, in powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        size = int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ") if found else 0
        if not 0 < size < 1 << 62:
            self.fail(f"{value!r} is not a size like 500m or 2g", param, ctx)
        return size


class TimestampParam(click.ParamType[Any]):
    """A time in RFC 3339, a date (midnight UTC), or `now`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp:
        from odfchain import Timestamp

        if isinstance(value, Timestamp):
            return value
        text = str(value)
        if text == "now":
            return Timestamp.now()
        try:
            return Timestamp.parse(f"{text}T00:00:00Z" if len(text) == 10 else text)
        except OdfchainError as error:
            self.fail(f"{error} ({error.hint})" if error.hint else str(error), param, ctx)


TIMESTAMP = TimestampParam()
DURATION = DurationParam()
PATH = click.Path(path_type=Path)
RECORD_FORMATS = ("table", "json", "ndjson", "csv")


# How functions declare their parameters: the default of each is what `option` or `argument` returns, and the
# annotation says the type. A command so has every option in one place.


@dataclass(frozen=True, slots=True)
class _Declared:
    parameters: Callable[[str, str], list[click.Parameter]]
    """What click knows of a parameter, from its name and annotation."""
    is_group: bool = False
    """The function gets a dictionary, of what was given on the command line only."""


def global_options(*, hidden: bool = False) -> list[click.Parameter]:
    """The options of every command, that may stand before it or behind it; help lists them once."""
    folder = {"metavar": "DIR", "envvar": None if hidden else "ODFCHAIN_WORKSPACE"}
    flag: dict[str, Any] = {"is_flag": True}
    given: list[tuple[list[str], str, dict[str, Any]]] = [
        (["-w", "--workspace"], "Work in the workspace of this folder instead of the current one.", folder),
        (["-q", "--quiet"], "Print results and errors only.", flag),
        (["-y", "--yes"], "Answer yes to every question.", flag),
        (["--no-color"], "Do not colour the output.", flag),
        (["--debug"], "Show a traceback when something unexpected happens.", flag),
    ]
    shared: dict[str, Any] = {"hidden": hidden, "expose_value": False, "callback": _set_globally}
    return [click.Option(names, help=text, **how, **shared) for names, text, how in given]


def _set_globally(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    found = ctx.ensure_object(Globals)
    if option.name != "no_color":
        setattr(found, str(option.name), value or getattr(found, str(option.name)))
        return
    if value and not os.environ.get("NO_COLOR"):  # rich looks there
        os.environ["NO_COLOR"] = "1"
    if os.environ.get("NO_COLOR"):
        ctx.color = False


_ANYWHERE = global_options(hidden=True)
"""Behind each command: one list for all, because making them takes time at every start."""


def examples_of(context: click.Context) -> list[str]:
    """The command lines that show a command; of a group the first one."""
    path = context.command_path
    text = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")
    found = [line for line in text.splitlines() if line == path or line.startswith(f"{path} ")]
    return found[:1] if isinstance(context.command, click.Group) else found


class Command(click.Command):
    """A command whose help begins with an example and its purpose; the grammar comes after them."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The order of click with the grammar moved behind the purpose."""
        for example in examples_of(ctx):
            formatter.write(f"Example: {example}\n")
        self.format_help_text(ctx, formatter)
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; errors know the command, though click's parser tells some of them without it."""
        with click.core.augment_usage_errors(ctx):
            return super().parse_args(ctx, args)


class Group(Command, click.Group):
    """A command that has others below it."""

    command_class = Command


def group(
    name: str, above: click.Group | None = None, kind: type[Group] = Group
) -> Callable[[Callable[..., Any]], click.Group]:
    """Makes a group of a function."""
    return (above.group if above else click.group)(name, cls=kind, params=[*_ANYWHERE])


def command(
    name: str, group: click.Group | None = None, *, asks: bool = False
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function with these parameters; the help of one that `asks` names `--yes`."""

    def made(function: Callable[..., Any]) -> click.Command:
        params = [*_ANYWHERE]
        groups: dict[str, list[str]] = {}
        for each in inspect.signature(function).parameters.values():
            found = each.default.parameters(each.name, each.annotation)
            params += found
            if each.default.is_group:
                groups[each.name] = [str(param.name) for param in found]

        if asks:
            params = [*(each for each in params if each.name != "yes"), global_options()[2]]

        @functools.wraps(function)
        def run(**values: Any) -> Any:
            for each, names in groups.items():
                chosen = {name: values.pop(name) for name in names}
                values[each] = {name: value for name, value in chosen.items() if is_given(name)}
            return function(**values)

        return (group.command if group else click.command)(name, cls=Command, params=params)(run)

    return made


def is_given(name: str) -> bool:
    """True if the command line has the parameter: its default does not count."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


class _Option(click.Option):
    """An option that may have another spelling, which is understood and not shown."""

    def __init__(self, *args: Any, also: str | None = None, **how: Any) -> None:
        super().__init__(*args, **how)
        self._also = also

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if self._also:
            parser.add_option(obj=self, opts=[self._also], dest=self.name, nargs=self.nargs)


def option(text: str, *shape: str, **how: Any) -> Any:
    """An option and its line of help; `shape` are names, where `--parameter` is not all, and the metavar.

    The annotation is `bool` for a flag, a tuple where it can be repeated, and `float` for a length of time.
    `least` and `most` are bounds, `choices` the words that it takes, `also` is the spelling of kamu, and the
    rest is click's.
    """
    return _Declared(lambda name, kind: [_option(name, kind, text, shape, how)])


def one_of(**texts: str) -> Any:
    """Several flags for one parameter, which gets the name of the last that was given."""
    return _Declared(
        lambda name, _: [
            click.Option([name, f"--{value}"], flag_value=value, help=text) for value, text in texts.items()
        ]
    )


def argument(kind: click.ParamType[Any] | None = None, **how: Any) -> Any:
    """An argument; those whose annotation is a tuple take the rest, `| None` need not be given."""

    def made(name: str, annotation: str) -> list[click.Parameter]:
        several = annotation.startswith("tuple[")
        if "None" in annotation:
            how["required"] = False
        found = kind or (PATH if "Path" in annotation else None)
        return [click.Argument([name], type=found, nargs=-1 if several else 1, **how)]

    return _Declared(made)


def keywords(verb: type, *names: str) -> Any:
    """The options that are keywords of a method, too: those of these names, or all."""

    def made(*_: str) -> list[click.Parameter]:
        hints = get_type_hints(verb, include_extras=True)
        shown = [name for name in names or hints if hasattr(hints[name], "__metadata__")]
        return [_keyword(name, hints[name], getattr(verb, name, None)) for name in shown]

    return _Declared(made, is_group=True)


def _keyword(name: str, declared: Any, default: object = None) -> click.Option:
    kind, *said = get_args(declared)
    text, *shape = [each for each in said if isinstance(each, str)]
    how = next((dict(each) for each in said if isinstance(each, dict)), {})
    if default is True:
        how["flag_value"] = False
    elif default and isinstance(default, int):
        how.setdefault("default", default)
    return _option(name, str(kind), text, shape, how)


def _option(name: str, kind: str, text: str, shape: Sequence[str], how: Mapping[str, Any]) -> click.Option:
    words, how = re.findall(r"\w+", kind), dict(how)
    names = [each for each in shape if each.startswith("-")]
    if not any(each.startswith("--") for each in names):
        names.append(f"--{name.replace('_', '-')}")
    bounds = {"min": how.pop("least", None), "max": how.pop("most", None)}
    if "choices" in how:
        how["type"] = click.Choice(how.pop("choices"))
    elif "bool" in words and "/" not in names[-1]:
        how["is_flag"] = True
    elif "type" not in how:
        kinds = {"Path": PATH, "Timestamp": TIMESTAMP, "float": DURATION, "int": click.IntRange(**bounds)}
        how["type"] = next((known for word, known in kinds.items() if word in words), None)
    elif how["type"] == "size":
        how["type"] = SizeParam()
    if not _SEVERAL.isdisjoint(words):
        how["multiple"] = True
    how.setdefault("show_default", how.get("default") not in (None, ""))
    metavar = next((each for each in shape if not each.startswith("-")), None)
    return _Option([name, *names], help=text or None, metavar=metavar, **how)


def formats(*names: str, default: str | None = "table") -> Any:
    """The option `-o/--output-format`; without names, those of records. Tables have `--wide`, too."""
    known = names or RECORD_FORMATS
    form = option("The format of the result.", "-o", "--output-format", choices=known, default=default)
    return _Declared(lambda *each: [*form.parameters(*each), *[_WIDE] * ("table" in known)])


_WIDE = click.Option(
    ["--wide"], is_flag=True, expose_value=False, help="Show tables whole: every column, every value.",
    callback=lambda ctx, _, value: ctx.meta.update({WIDE: value}),
)  # fmt: skip


DRY_RUN = option("Show the changes, and make none.")
BREAK_REFERENCES = option("Go on even if rows refer to lost changes.")
COMMITTING = ("allow_drift", "violations")
"""The keywords of what records rows."""
MERGING = ("allow_empty", "allow_retract", "late_edits", "duplicate_keys", "allow_future", *COMMITTING)
"""The keywords of what ingests."""


def key_values(texts: Iterable[str], shown: str = "COL=VALUE, like iata=ZRH") -> dict[str, str]:
    """The values of names, such as a key's columns."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not {shown}")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = value
    return found


# The token in the environment, for the places that the command line names.

_VARIABLE = "ODFCHAIN_TOKEN"


def token_for(urls: Iterable[PeerUrl]) -> str | None:
    """The token in the environment, for the places that are named; None when there is none for them.

    Raises:
        UsageError: it would go to more than one server.
    """
    token = os.environ.get(_VARIABLE)
    web = [url for url in urls if url.protocol in ("http", "https")] if token else []
    if not (origins := {f"{url.protocol}://{url.authority}": url for url in web}):
        return None
    if len(origins) > 1:
        servers = " and ".join(sorted(origins))
        raise UsageError(
            f"{_VARIABLE} is a token for one server, not for {servers}", hint="pull from one server at a time"
        )
    for url in origins.values():
        if url.is_in_clear:
            readable = "anyone on the network path can read it"
            echo(f"warning: {_VARIABLE} goes to {url.authority} over plain http: {readable}", err=True)
    return token
