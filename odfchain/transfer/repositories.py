"""The repositories that a workspace knows by name: places below whose URL datasets are.

    .odfchain/repos/NAME        a manifest of kind `Repository` with the URL

Names are compared without regard to case, as all names are. Source: specification "Repository Contract".
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from odfchain.codec.tree import to_tree
from odfchain.codec.yaml_manifest import ManifestKind, read_manifest
from odfchain.codec.yaml_reader import read_document
from odfchain.codec.yaml_writer import dump_yaml
from odfchain.errors import (
    InvalidIdError,
    ManifestError,
    NameCollisionError,
    UnsupportedPeerError,
    WorkspaceError,
)
from odfchain.ids.names import RepoName
from odfchain.store import fsio
from odfchain.transfer.plain_urls import PlainUrl
from odfchain.transfer.public_layout import PeerUrl
from odfchain.trust.signature_policy import NO_POLICY, SignaturePolicy, as_fields, from_fields

_READ_BYTES = 1 << 16
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A place that has datasets."""

    url: str
    """Where it is; a dataset's alias is appended to it."""
    require_signature: bool | None = None
    """Whether copies from here need the owner's signature of the head."""
    max_signature_age_seconds: int | None = None
    """How old that signature may be [s]."""


REPOSITORY = ManifestKind("Repository", Repository, range(1, 2))


@dataclass(frozen=True, slots=True)
class KnownRepository:
    """A repository and the name that this workspace gives it."""

    name: RepoName
    url: PeerUrl
    policy: SignaturePolicy = NO_POLICY


def parse_peer_url(text: str) -> PeerUrl:
    """The URL of a repository or dataset, as a user writes it.

    Raises:
        UnsupportedPeerError: not a URL, or of a protocol that is not spoken; the hint says what to write.
    """
    if "://" not in text and not text.startswith("file:"):
        raise UnsupportedPeerError(
            f"{text!r} is not a URL",
            hint="write a folder like file:///srv/datasets/, a server like https://host/",
        )
    return PeerUrl.parse(text)


def intended_url(text: str) -> str | None:
    """A hint for a text that lacks only the beginning of a URL: a path, or a host with a port or a domain."""
    if text.startswith(("/", "./", "../", "~")):
        return f"a folder is written as a URL: {Path(text).expanduser().absolute().as_uri()}"
    host, slash, _ = text.partition("/")
    if slash and _HOST.fullmatch(host) and (":" in host or "." in host):
        return f"if a server is meant, write the URL: http://{text}"
    return None


@dataclass(frozen=True, slots=True)
class Repositories:
    """The registry of one workspace; `root` is its `.odfchain` folder."""

    root: Path

    @property
    def _folder(self) -> Path:
        return self.root / "repos"

    def add(self, name: RepoName, url: str, policy: SignaturePolicy = NO_POLICY) -> KnownRepository:
        """Durably remember a repository; its URL gets a slash at its end.

        Raises:
            NameCollisionError: the name is taken.
        """
        found = parse_peer_url(url)
        fsio.make_folder(self._folder)
        with fsio.locked(self.root / "lock"):
            path = self._find(name)
            if path is not None:
                raise NameCollisionError(
                    f"a repository called {path.name!r} exists already: {self._read(path).url}",
                    hint=f"choose another name, or `odfchain repo delete {path.name}` first",
                )
            document = {
                "kind": REPOSITORY.name,
                "version": REPOSITORY.versions[-1],
                "content": to_tree(Repository(url=found.text, **as_fields(policy))),
            }
            # not for everybody: a URL may have a password in it
            fsio.create_file(self._folder / str(name), dump_yaml(document).encode(), mode=0o600)
        return KnownRepository(name, found, policy)

    def delete(self, name: RepoName) -> None:
        """Forget a repository; datasets and their aliases stay as they are.

        Raises:
            WorkspaceError: there is no such repository.
            StoreError: it cannot be removed.
        """
        with fsio.locked(self.root / "lock"):
            path = self._find(name)
            if path is None:
                raise self._unknown(name)
            with fsio.storage_errors(path):
                path.unlink()
            fsio.sync_folder(self._folder)

    def list(self) -> list[KnownRepository]:
        """All repositories, ordered by name."""
        return [self._read(path) for _, path in sorted(self._paths().items())]

    def find(self, name: RepoName) -> PeerUrl | None:
        """Where a repository is; None when there is none of this name."""
        path = self._find(name)
        return None if path is None else self._read(path).url

    def get(self, name: RepoName) -> PeerUrl:
        """Where a repository is.

        Raises:
            WorkspaceError: there is no such repository.
            ManifestError, UnsupportedPeerError: as `list`.
        """
        found = self.find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def policy(self, url: PeerUrl) -> SignaturePolicy:
        """What the repositories want of the signature of a dataset below their URL, however it is spelled."""
        found, place = NO_POLICY, PlainUrl.of(url)
        for known in self.list():
            if place.is_below(PlainUrl.of(known.url)):
                found = found.and_also(known.policy)
        return found

    def _unknown(self, name: RepoName) -> WorkspaceError:
        known = ", ".join(str(found) for found in sorted(self._paths()))
        return WorkspaceError(
            f"no repository is called {str(name)!r}",
            hint=f"known are: {known}" if known else f"make it known: odfchain repo add {name} URL",
        )

    def _paths(self) -> dict[RepoName, Path]:
        paths = {}
        with fsio.storage_errors(self._folder), contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                name = _name_of(path)
                if name is not None:
                    paths[name] = path
        return paths

    def _find(self, name: RepoName) -> Path | None:
        return self._paths().get(name)

    @staticmethod
    def _read(path: Path) -> KnownRepository:
        with fsio.storage_errors(path), path.open("rb") as stream:
            data = stream.read(_READ_BYTES + 1)
        if len(data) > _READ_BYTES:
            raise ManifestError(f"larger than {_READ_BYTES:,} bytes", source=str(path))
        repository: Repository = read_manifest(read_document(data, source=str(path)), REPOSITORY, str(path))
        policy = from_fields(
            repository.require_signature, repository.max_signature_age_seconds, source=str(path)
        )
        return KnownRepository(RepoName(path.name), parse_peer_url(repository.url), policy)


def _name_of(path: Path) -> RepoName | None:
    """The name that a file stands for; None for temporary and foreign files."""
    try:
        return RepoName(path.name)
    except InvalidIdError:
        return None
