"""The engine of a transform, and the check of its version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from odfchain.errors import TransformError
from odfchain.odf.sources import Transform
from odfchain.odf.transform_options import OWN_ENGINE, is_own, is_own_name, named_version
from odfchain.text import one_line
from odfchain.transform.engine_interface import engine_version, same_results
from odfchain.workspace.config import IsolationPolicy

if TYPE_CHECKING:
    from odfchain.progress import Progress
    from odfchain.transform.engine_client import RemoteEngine
    from odfchain.transform.engine_interface import TransformEngine
    from odfchain.workspace.config import TransformConfig
    from odfchain.workspace.dataset_files import DatasetFiles


def remote_engine(transform: Transform, config: TransformConfig) -> RemoteEngine | None:
    """The engine at the address that the settings give for a transform; None where this one is meant.

    Raises:
        TransformError: the transform is for another engine, and no address is known.
    """
    address = address_of(transform, config)
    if address is not None:
        from odfchain.transform.engine_client import RemoteEngine

        def accept(version: str) -> None:
            check_version(transform, config, version, f"the engine at {address}")

        return RemoteEngine(address, deadline=config.timeout_seconds or None, accept=accept)
    if not is_own_name(transform.engine):
        name = transform.engine.lower()
        raise TransformError(
            f"the transform is for the engine `{transform.engine}`, which is not this one",
            hint=f"give its address in the settings: transform.engines.{name}, "
            f"or write the query for {OWN_ENGINE}",
        )
    return None


def address_of(transform: Transform, config: TransformConfig) -> str | None:
    """The address that the settings give for a transform's engine; None where there is none."""
    # a transform recorded under this engine's former name stays its own, even if that name is now another's
    if named_version(transform) and is_own(transform):
        return config.engines.get(OWN_ENGINE)
    return config.engines.get(transform.engine.lower())


def check_version(
    transform: Transform, config: TransformConfig, running: str | None = None, who: str = "this"
) -> None:
    """This engine, or the one that says that it is `running`, gives the results that the transform asks for.

    Source: specification "Engine Deprecation".

    Raises:
        TransformError: the transform names another version that is not declared compatible.
    """
    running = running or engine_version()
    if not same_results(transform.version, running, config.compatible_versions):
        wanted = one_line(transform.version or "")
        raise TransformError(
            f"the transform asks for engine version {wanted}, and {who} is {running}",
            hint="if both give the same results, say so in the settings: transform.compatibleVersions",
        )


def is_isolated(config: TransformConfig, *, own: bool) -> bool:
    """True if queries of a dataset run in a sandbox; `own` datasets were created here."""
    return config.isolation is IsolationPolicy.ALWAYS or (
        config.isolation is IsolationPolicy.STRANGERS and not own
    )


@contextlib.contextmanager
def sandboxed_engines(
    dataset: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    engine: Callable[[Transform], TransformEngine | None],
    config: TransformConfig,
    progress: Progress,
) -> Iterator[Callable[[Transform], TransformEngine]]:
    """Engines for one dataset: those that `engine` finds, else Spark in a sandboxed process."""
    # started on first use; it reads the inputs and checkpoints, and writes to the staging folder
    from odfchain.transform.sandbox import sandboxed_engine

    with contextlib.ExitStack() as resources:
        started: list[TransformEngine] = []

        def find(transform: Transform) -> TransformEngine:
            found = engine(transform)
            if found is not None:
                return found
            if not started:
                scratch = resources.enter_context(dataset.staging())
                read = [*(item.folder / "data" for item in inputs), dataset.folder / "checkpoints"]
                started.append(
                    resources.enter_context(
                        sandboxed_engine(
                            read,
                            dataset.folder / "staging",
                            scratch,
                            progress=progress,
                            deadline=config.timeout_seconds or config.isolated_seconds or None,
                            memory_mib=config.isolated_memory_mib,
                        )
                    )
                )
            return started[0]

        yield find
