"""What another node says of a signed answer: `POST /verify`, as the reference node has it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from odfchain.errors import FetchError
from odfchain.limits import SHARING, FetchLimits
from odfchain.net.pool import HttpPool, request_headers
from odfchain.net.retry import Deadline, Timing, with_retries
from odfchain.net.url import parse_target
from odfchain.net.wire import Response
from odfchain.query.answer import Answer
from odfchain.query.answer_verdicts import OUTPUT_MISMATCH, ProofVerdict
from odfchain.query.node_json import read
from odfchain.text import one_line

_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds + 60,
    connect_timeout=SHARING.connect_seconds,
    idle_timeout=60,
    redirects=0,
    retries=2,
    first_wait=SHARING.retry_seconds,
)
"""A node computes before it answers."""
_BODY_BYTES = 1 << 20
_NOT_THERE = ("VerificationFailed::DatasetNotFound", "VerificationFailed::DatasetBlockNotFound")


def verdict_of_node(answer: Answer, url: str, *, token: str | None = None) -> ProofVerdict:
    """The verdict of the node at `url`; nothing is checked here."""
    name = one_line(url.partition("?")[0].rpartition("@")[2], 200)
    base = parse_target(url, name=name)
    target = replace(base, path=base.path.rstrip(b"/") + b"/verify")
    credentials = f"Bearer {token}" if token is not None else base.user
    given = [("Content-Type", "application/json"), ("Accept", "application/json")]
    if credentials is not None:
        given.append(("Authorization", credentials))
    body = answer.to_json(engine=False).encode()
    timing = Timing()
    deadline = Deadline(_LIMITS.deadline, timing, name=name)

    def attempt() -> ProofVerdict:
        with contextlib.closing(HttpPool(_LIMITS)) as pool:
            route = pool.route(target, name)
            headers = request_headers(route, given)
            with pool.exchange(route, headers, deadline=deadline, name=name, body=body) as response:
                return _read(response, answer, name)

    return with_retries(attempt, name=name, limits=_LIMITS, timing=timing, deadline=deadline)


def _read(response: Response, answer: Answer, name: str) -> ProofVerdict:
    if passing := response.passing():
        raise passing
    found: Any = None
    data = response.read(_BODY_BYTES)
    with contextlib.suppress(ValueError):
        found = read(data or b"")
    if not isinstance(found, dict):
        found = {}
    if response.status == 200 and found.get("ok") is True:
        return ProofVerdict(ok=True, message=f"{name} says that it is true", signer=answer.signer)
    error = found.get("error")
    if response.status == 400 and found.get("ok") is False and isinstance(error, dict):
        texts = {str(k): one_line(v) for k, v in error.items() if type(v) is str}
        kind, said = texts.pop("kind", None), texts.pop("message", "no reason")
        # which version of the engine it has, it does not say
        return ProofVerdict(
            ok=False,
            kind=kind,
            message=f"{name} says: {said}",
            incomplete=kind in (OUTPUT_MISMATCH, *_NOT_THERE),
            signer=answer.signer,
            engine=answer.engine,
            details=texts,
        )
    said = found.get("message")
    why = f": {one_line(said)}" if type(said) is str else ""
    hint = "set ODFCHAIN_TOKEN to a token for it" if response.status in (401, 403) else None
    raise FetchError(f"{name}: {response.what}{why}", hint=hint)
