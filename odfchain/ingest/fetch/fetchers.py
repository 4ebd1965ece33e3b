"""Which fetcher serves which fetch step."""

from __future__ import annotations

from odfchain.errors import FetchError
from odfchain.ingest.fetch.fetcher import FetchContext, FetchResult
from odfchain.model.sources import FetchStep, FetchStepContainer, FetchStepFilesGlob, FetchStepUrl


def fetch(step: FetchStep, context: FetchContext) -> FetchResult:
    """New bytes of a source with the state to remember, or `UP_TO_DATE`.

    Raises:
        FetchError: it cannot be fetched now, or the kind of source is not supported.
    """
    match step:
        case FetchStepUrl():
            from odfchain.ingest.fetch.by_url import fetch_url

            return fetch_url(step, context)
        case FetchStepFilesGlob():
            from odfchain.ingest.fetch.glob import fetch_glob

            return fetch_glob(step, context, recorded=context.previous_time)
        case FetchStepContainer():
            from odfchain.ingest.fetch.container import fetch_container

            return fetch_container(step, context)
    raise FetchError(f"fetching from {step.KIND} is not supported (Url, FilesGlob and Container are)")
