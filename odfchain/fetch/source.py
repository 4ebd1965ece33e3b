"""Which fetcher serves which fetch step."""

from __future__ import annotations

from odfchain.errors import FetchError
from odfchain.fetch.base import FetchContext, FetchResult
from odfchain.metadata.sources import FetchStep, FetchStepContainer, FetchStepFilesGlob, FetchStepUrl


def fetch(step: FetchStep, context: FetchContext) -> FetchResult:
    """New bytes of a source with the state to remember, or `UP_TO_DATE`.

    Raises:
        SourceNotFoundError: the source is not there.
        FetchError: it cannot be fetched now, or the kind of source is not supported.
        StorageFullError: no space left for what it sends.
    """
    match step:
        case FetchStepUrl():
            from odfchain.fetch.url import fetch_url  # noqa: PLC0415 - each brings its own libraries

            return fetch_url(step, context)
        case FetchStepFilesGlob():
            from odfchain.fetch.glob import fetch_glob  # noqa: PLC0415

            return fetch_glob(step, context, recorded=context.previous_time)
        case FetchStepContainer():
            from odfchain.fetch.container import fetch_container  # noqa: PLC0415

            return fetch_container(step, context)
    raise FetchError(f"fetching from {step.KIND} is not supported (Url, FilesGlob and Container are)")
