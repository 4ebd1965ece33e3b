"""Who may read which datasets of a server: the one rule for everything that shows, lists or hands out any.

Unless reading is restricted, that is everybody. If it is, a dataset that somebody may not read is not there
for them: nothing tells it from one that does not exist. Source: RFC-050.
"""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.ids.names import DatasetAlias
from odfchain.serve.access_tokens import AccessToken, Right, holder, is_shown
from odfchain.serve.token_file import TokenFile


@dataclass(frozen=True, slots=True)
class Readers:
    """The rule of a server."""

    tokens: TokenFile
    restricted: bool = False

    def reader(self, authorization: str | None) -> Reader | None:
        """Who asks with this header `Authorization`; None where it shows a token that is not in force."""
        if not self.restricted or not is_shown(authorization):
            return Reader(self, None)
        token = holder(authorization, self.tokens.tokens())
        return None if token is None else Reader(self, token)


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who asks, with a token that was in force or with none."""

    rule: Readers
    token: AccessToken | None

    def sees(self, alias: DatasetAlias) -> bool:
        """Whether the dataset is there for them."""
        if not self.rule.restricted:
            return True
        return self.token is not None and self.token.may(Right.READ, alias)

    def is_current(self) -> bool:
        """Whether what was true when they asked still is: a token may be revoked meanwhile."""
        return self.token is None or self.token in self.rule.tokens.tokens()
