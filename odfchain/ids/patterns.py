"""Name patterns: `%` stands for any run of characters, as in SQL LIKE.

A text with a `%` is a pattern, any other text a reference. Matching ignores ASCII case; an account in the
pattern must equal the dataset's account, and a pattern without one matches in any account.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from odfchain.errors import InvalidIdError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import HOSTNAME, AccountName, DatasetAlias, DatasetName, RepoName
from odfchain.ids.refs import DatasetRef, DatasetRefAny, parse_ref, parse_ref_any
from odfchain.limits import LIMITS

# Grammar of a pattern: Start? ('%'+ Middle)* '%'+ End?, where the pieces around '%' may begin or end in the
# middle of a host name, so a single '.' or '-' may stand next to a '%'.
_PATTERN = re.compile(rf"(?:{HOSTNAME}[.-]?)?(?:%+(?:[.-]?{HOSTNAME}[.-]?|[.-])(?=%))*%+(?:[.-]?{HOSTNAME})?")


@dataclass(frozen=True, slots=True)
class DatasetNamePattern:
    """A dataset name in which `%` matches any run of characters, the empty one included."""

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LIMITS.name_bytes:
            raise InvalidIdError(f"a pattern of {len(self.text)} bytes (at most {LIMITS.name_bytes})")
        if "%" in self.text:
            if not _PATTERN.fullmatch(self.text):
                raise InvalidIdError(f"{self.text!r} is not a valid dataset name pattern")
        else:
            DatasetName(self.text)

    def matches(self, name: DatasetName) -> bool:
        """Whether the name fits, ignoring ASCII case."""
        regex = ".*".join(re.escape(part) for part in self.text.lower().split("%"))
        return re.fullmatch(regex, name.key) is not None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class DatasetPattern:
    """A name pattern with an optional account."""

    account: AccountName | None
    pattern: DatasetNamePattern

    def matches(self, alias: DatasetAlias) -> bool:
        """Whether a local dataset of this alias is meant."""
        return (self.account is None or self.account == alias.account) and self.pattern.matches(alias.name)


@dataclass(frozen=True, slots=True)
class AmbiguousPattern:
    """`prefix/pattern`, where the prefix may be an account or a repository."""

    prefix: str
    pattern: DatasetNamePattern


@dataclass(frozen=True, slots=True)
class RemotePattern:
    """`repo/account/pattern`."""

    repo: RepoName
    account: AccountName
    pattern: DatasetNamePattern


def parse_ref_pattern(text: str) -> DatasetPattern | DatasetRef:
    """A local pattern when the text holds a `%`, else a local reference."""
    if "%" not in text:
        return parse_ref(text)
    account, slash, rest = text.rpartition("/")
    if not slash:
        return DatasetPattern(None, DatasetNamePattern(rest))
    return DatasetPattern(AccountName(account), DatasetNamePattern(rest))


def parse_ref_any_pattern(
    text: str,
) -> DatasetPattern | AmbiguousPattern | RemotePattern | DatasetRefAny:
    """A pattern, local, ambiguous or remote, when the text holds a `%`, else any reference.

    Raises:
        InvalidIdError: no reading fits.
    """
    if "%" not in text:
        return parse_ref_any(text)
    parts = text.split("/")
    pattern = DatasetNamePattern(parts[-1])
    match parts[:-1]:
        case []:
            return DatasetPattern(None, pattern)
        case [prefix]:
            return AmbiguousPattern(str(RepoName(prefix)), pattern)
        case [repo, account]:
            return RemotePattern(RepoName(repo), AccountName(account), pattern)
    raise InvalidIdError(f"{text!r} is not a valid dataset pattern")


def ref_matches(ref: DatasetPattern | DatasetRef, dataset_id: DatasetId, alias: DatasetAlias) -> bool:
    """Whether a local dataset with this id and alias is meant by the reference or pattern."""
    match ref:
        case DatasetPattern():
            return ref.matches(alias)
        case DatasetId():
            return ref == dataset_id
        case DatasetAlias():
            return ref == alias
