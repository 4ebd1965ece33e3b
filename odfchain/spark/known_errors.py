"""The errors of ours that exceptions of libraries and of the system stand for."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from odfchain.errors import OdfchainError, StoreError
from odfchain.storage.fsio import shortage

P = ParamSpec("P")
T = TypeVar("T")
_CALLED_BY_PYTHON = frozenset({"__contains__", "__getitem__", "__iter__", "__len__"})


def known_error(error: Exception) -> OdfchainError | None:
    """The error of our tree for an exception; None for a bug."""
    if isinstance(error, OdfchainError):
        return error
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        gone = isinstance(error, FileNotFoundError)
        hint = "it was there a moment ago; run the command again" if gone else None
        return StoreError(f"{os.fsdecode(error.filename)}: {error.strerror}", hint=hint)
    from odfchain.spark.jobs import explain, is_of_spark

    return explain(error) if is_of_spark(error) else shortage(error)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise errors of the file system as errors of our tree."""
    try:
        yield
    except OSError as error:
        if (known := known_error(error)) is None:
            raise
        raise known from error


def with_own_errors(function: Callable[P, T]) -> Callable[P, T]:
    """The function, or the generator, that raises as `own_errors`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with own_errors():
            return function(*args, **kwargs)

    @functools.wraps(function)
    def generated(*args: P.args, **kwargs: P.kwargs) -> Any:
        with own_errors():
            yield from function(*args, **kwargs)  # type: ignore[misc]

    return generated if inspect.isgeneratorfunction(function) else called


class OwnErrors:
    """Methods and properties that users call of classes below this one raise as `own_errors`."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in list(vars(cls).items()):
            if name.startswith("_") and name not in _CALLED_BY_PYTHON:
                continue
            if isinstance(value, FunctionType):
                setattr(cls, name, with_own_errors(value))
            elif isinstance(value, classmethod):
                setattr(cls, name, classmethod(with_own_errors(value.__func__)))
            elif isinstance(value, property) and value.fget is not None:
                setattr(cls, name, property(with_own_errors(value.fget), doc=value.__doc__))
