"""What a copy wants of the signature of its peer's head: nothing, a valid one, or a young one.

A policy comes from the command line, from what is set for a dataset (`info/config`), and from the
repositories that it is pulled from (`repos/NAME`). They add up; only the command line takes away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from odfchain.errors import ManifestError, UsageError
from odfchain.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class SignaturePolicy:
    """A signature that is wanted must be the owner's, of the very head, and not of the future."""

    require: bool = False
    """Whether a head without a valid signature is refused; a longest age wants that, too."""
    max_age: int | None = None
    """How long ago the signature may have been made [s]: whoever withholds new blocks cannot renew it."""
    now: Callable[[], Timestamp] = field(default=Timestamp.now, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: no age at all.
        """
        if self.max_age is not None and self.max_age < 1:
            raise UsageError(f"a signature cannot be younger than {self.max_age} seconds")

    @property
    def required(self) -> bool:
        """Whether a head without a valid signature is refused."""
        return self.require or self.max_age is not None

    def __str__(self) -> str:
        """What is wanted, for people."""
        if self.max_age is not None:
            return f"required, at most {length(self.max_age)} old"
        return "required" if self.require else "not required"

    def and_also(self, other: SignaturePolicy) -> SignaturePolicy:
        """What both want; the clock is this one's."""
        ages = [age for age in (self.max_age, other.max_age) if age is not None]
        return SignaturePolicy(
            require=self.required or other.required, max_age=min(ages, default=None), now=self.now
        )


NO_POLICY = SignaturePolicy()


def length(seconds: int) -> str:
    """A length of time for people, rounded down."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:,} {name}"
    return f"{seconds:,} seconds"


def as_fields(policy: SignaturePolicy) -> dict[str, Any]:
    """The fields of a manifest that hold a policy; nothing is written where nothing is wanted."""
    return {
        "require_signature": True if policy.required else None,
        "max_signature_age_seconds": policy.max_age,
    }


def from_fields(require: bool | None, max_age: int | None, *, source: str) -> SignaturePolicy:
    """The policy that a manifest's fields hold.

    Raises:
        ManifestError: the age is none.
    """
    try:
        return SignaturePolicy(require=bool(require), max_age=max_age)
    except UsageError as error:
        raise ManifestError(str(error), path="maxSignatureAgeSeconds", source=source) from None
