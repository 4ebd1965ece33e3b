"""`odfchain serve`: the workspace is published over HTTP, and may be written to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odfchain import errors
from odfchain.api.pulling import signature_policy
from odfchain.cli import parameters as cli
from odfchain.cli import screen
from odfchain.cli.context import open_workspace, options, report_error, say
from odfchain.cli.progress_bar import TerminalProgress, one_by_one
from odfchain.limits import HOST, PORT, SHARING
from odfchain.text import human_size
from odfchain.workspace.options import NodeOptions, PushOptions

if TYPE_CHECKING:
    from odfchain import SignaturePolicy, Workspace
    from odfchain.results import PeerUrl, PushOutcome, PushPlan, PushTarget


@cli.command("serve")
def serve_command(
    host: str = cli.option("Address to listen on.", default=HOST),
    port: int = cli.option("TCP port to listen on; 0 takes a free one.", least=0, most=65_535, default=PORT),
    read_only: bool = cli.option("Read-only (default)."),
    publishing: dict[str, Any] = cli.keywords(NodeOptions),
    branches: bool = cli.option("Publish all branches, too, and not the heads alone."),
    names: tuple[str, ...] = cli.option("Publish branches of this name, too.", "--branch", "NAME"),
    verbose: bool = cli.option("Print a line for each request, to standard error."),
    print_address: bool = cli.option("Print the address once it can be connected to."),
) -> None:
    """Publish the datasets of the workspace over HTTP.

    The server runs until Ctrl-C or SIGTERM. Its first line names the address, and datasets are at /NAME/
    below it. With --print-address, standard output has the address alone, for scripts. `odfchain pull` reads
    the datasets, and so does every client of Open Data Fabric's simple protocol. Nothing can be changed
    unless --write is given.

    Anyone who can connect can read all datasets. With --restrict-reading a reader needs a token for the
    dataset (odfchain token create NAME --allow read:PATTERN). Branches are drafts, and are published by
    --branches or --branch only. Private keys, settings and the origins of datasets are not published.

    With --write, `odfchain push --to odf+http://…/NAME` gives datasets to this workspace. That needs a token,
    and a dataset whose private key is not here. There is no encryption. So a server that takes tokens listens
    on this machine only, or is started with --behind-proxy.

    With --sql, pages and programs ask SQL of the datasets. People see them in a browser, unless --no-pages is
    given.

    Requests for another host than the address or localhost are answered with 421. So no page in a browser
    here can read the datasets under a name of its own. --allow-host gives the server a name more.
    """
    if read_only and "write" in publishing:
        raise errors.UsageError("--read-only and --write contradict each other")

    def listening(address: str) -> None:
        if not quiet:
            screen.echo(f"the datasets of {workspace.path.parent} are at {address}; Ctrl-C ends it", err=True)
        if print_address:
            screen.echo(address)

    from odfchain.node.application import serve

    quiet = options().quiet
    with open_workspace() as workspace:
        publishing |= {"host": host, "port": port, "listening": listening, "on_problem": _say}
        publishing |= {"on_request": _say if verbose else None, "branches": branches or names}
        serve(workspace, **publishing)


@cli.command("ui")
def ui_command(
    port: int = cli.option("TCP port to listen on; 0 takes a free one.", least=0, most=65_535, default=0),
    stay: bool = cli.option("Print the address, and open no browser.", "--no-open"),
) -> None:
    """Look at the workspace in a browser.

    This is `serve --sql` on this machine alone. The first address has a secret that opens the pages once.
    Then the browser has a cookie, and other users of the machine see nothing.
    """
    import secrets
    import webbrowser

    from odfchain.node.application import serve

    secret = secrets.token_urlsafe(16)

    def listening(address: str) -> None:
        first = f"{address}?secret={secret}"
        say(f"the pages of {workspace.path.parent} are at the address below, once; Ctrl-C ends it")
        screen.echo(first)
        if not stay:
            webbrowser.open(first)

    with open_workspace() as workspace:
        serve(workspace, host=HOST, port=port, sql=True, secret=secret, listening=listening, on_problem=_say)


def _say(line: str) -> None:
    screen.echo(line, err=True)


# `odfchain push`: datasets are sent to folders, object stores and nodes.

_PUSHED = ["dataset", "status", "blocks", "objects", "bytes", "destination"]


@cli.command("push")
def push_command(
    datasets: tuple[str, ...] = cli.argument(cli.DATASET_AT, metavar="[DATASET]... [TARGET]"),
    url: str | None = cli.option(
        "The place for the dataset, such as file:///srv/datasets/name.", "--to", "URL"
    ),
    everything: bool = cli.option("Push every dataset; without --to those pushed before.", "-a", "--all"),
    recursive: bool = cli.option("Push the inputs of the datasets first.", "-r"),
    dry_run: bool = cli.option("Show the news for the target, and send nothing."),
    chosen: dict[str, Any] = cli.keywords(PushOptions),
    visibility: str = cli.option(
        "The visibility at a node.", choices=["private", "public"], default="private"
    ),
    output: str = cli.formats(),
) -> int:
    """Send datasets to a folder, an object store or a node.

    The target is a repository, repository/dataset, or a URL: file, s3, gs, az, or odf+https for a node of
    Open Data Fabric. A node wants a token (`odfchain login`). Without a target the dataset goes to its last
    one. Any web server can publish a folder or a store. Its readers see everything that is new, or nothing of
    it. DATASET@BRANCH sends that branch, and nothing else.

    Several datasets (names, % patterns, --all, --recursive) go to a repository, by its name or URL, and keep
    their names there. A dataset that fails does not stop the others.
    """
    with open_workspace() as workspace:
        names, target = _split_target(workspace, datasets, everything=everything)
        if target is not None and url is not None:
            raise errors.UsageError(f"the destination is given twice: {target} and --to")
        place = target or url
        token = _token(place) if place else None
        targets = workspace.push_targets(None if everything else names, place, recursive=recursive)
        if not targets:
            say("no dataset was pushed before; `odfchain push --all --to REPOSITORY` pushes all")
            return 0
        chosen |= {"token": token, "public": visibility == "public"}
        with TerminalProgress() as progress:

            def send(each: PushTarget) -> dict[str, Any]:
                if dry_run:
                    plan = each.dataset.plan_push(each.to, **chosen)
                    status = "up to date" if plan.up_to_date else "would be pushed"
                    return _row(str(each), plan, status)
                outcome = each.dataset.push(each.to, progress=progress, **chosen)
                _remark(outcome, progress, f"{each}: " if len(targets) > 1 else "")
                return _row(str(each), outcome.plan, _status(outcome), str(outcome.signature))

            rows, code = one_by_one(targets, send, progress)
        if rows:
            screen.print_records(rows, _PUSHED, output, shown={"bytes": human_size}, right=_PUSHED[2:5])
        return code


def _split_target(
    workspace: Workspace, texts: Sequence[str], *, everything: bool
) -> tuple[list[str], str | None]:
    if (everything and len(texts) > 1) or not (everything or texts):
        raise errors.UsageError("name the datasets to push (names, ids or % patterns), or use --all")
    if everything:
        return [], texts[0] if texts else None
    *names, last = texts
    if not names:
        return [last], None
    known = "/" not in last and _is_repository(workspace, last)
    if known and last in workspace:
        message = f"{last} is a dataset here and a repository, too"
        raise errors.UsageError(message, hint=f"for the repository write --to {last}")
    if known or ((":" in last or "/" in last) and workspace.sharing.is_remote(last)):
        return names, last
    if not {"/", "%", "@"} & set(last) and last not in workspace:
        hint = "`odfchain list` and `odfchain repo list` show those that there are"
        raise errors.DatasetNotFoundError(f"no dataset and no repository is called {last!r}", hint=hint)
    return [*names, last], None


def _is_repository(workspace: Workspace, text: str) -> bool:
    from odfchain import RepoName

    try:
        return workspace.repositories.find(RepoName(text)) is not None
    except errors.InvalidIdError:
        return False


def _remark(outcome: PushOutcome, progress: TerminalProgress, about: str) -> None:
    if outcome.caveat:
        progress.stop()
        say(f"note: {about}{outcome.caveat}")
    if outcome.problem:
        progress.stop()
        screen.echo(f"warning: {outcome.plan.where}: {outcome.problem}; push again", err=True)


def _status(outcome: PushOutcome) -> str:
    if outcome.up_to_date:
        return "up to date"
    if outcome.plan.overwrites:
        return "overwritten"
    return "updated" if outcome.plan.old_head else "created"


def _token(place: str) -> str | None:
    try:
        url = _peer_url(place if "://" in place else place.partition("/")[0])
    except errors.OdfchainError:
        return None  # what is wrong with it is said when it is opened
    return cli.token_for([url])


def _row(name: str, plan: PushPlan, status: str, signature: str | None = None) -> dict[str, Any]:
    return {
        "dataset": name, "status": status, "blocks": len(plan.blocks), "objects": len(plan.objects),
        **screen.record(plan, "bytes", "destination:where", "present"), "merged": len(plan.merged),
        **screen.record(plan, "overwrites", "head:new_head", "oldHead:old_head"), "signature": signature,
    }  # fmt: skip


@cli.group("token")
def token_command() -> None:
    """Make and revoke tokens for the server of this workspace."""


@cli.command("create", token_command)
def token_create(
    name: str = cli.argument(),
    allow: tuple[str, ...] = cli.option(
        "A right: read:, query:, ingest:, push:, or with it force:PATTERN to overwrite history. "
        "% is any text: ALICE/%, %/%.",
        "RIGHT:PATTERN",
        required=True,
    ),
) -> None:
    """Make a token and print it, this once.

    Only its hash is kept, in .odfchain/tokens.yaml. The right `push:` allows pushes to the server that
    `odfchain serve --write` starts, for datasets whose private keys are not here. The right `read:` allows
    reading if the server has --restrict-reading. `query:` allows to ask by SQL, `ingest:` to send rows;
    reading goes with both, and with `push:`. `push --force` needs `push:` and `force:`; `force:` alone allows
    nothing.
    """
    made = open_workspace().tokens.create(name, allow)
    say(f"the token {made.token.name}; it is shown this once:")
    screen.echo(made.text)


@cli.command("list", token_command)
def token_list(output: str = cli.formats()) -> None:
    """List the tokens, their rights and their age. The tokens themselves are not kept."""
    rows = [screen.record(token, "name", "allow", "created") for token in open_workspace().tokens.list()]
    if not rows and output == "table":
        say("no tokens; `odfchain token create NAME --allow push:DATASET` makes one")
        return
    screen.print_records(rows, ["name", "allow", "created"], output, shown={"allow": " ".join})


@cli.command("revoke", token_command)
def token_revoke(name: str = cli.argument(cli.TOKEN)) -> None:
    """End a token. Everything that is going on with it ends, too."""
    open_workspace().tokens.revoke(name)
    say(f"revoked {name}")


# `odfchain search`: the datasets of repositories.

_FOUND = ["dataset", "kind", "records", "size", "blocks"]


@cli.command("search")
def search_command(
    text: str = cli.argument(default=""),
    repository: str | None = cli.option(
        "The one to look in, not all known ones.", "--repo", "NAME|URL", type=cli.REPOSITORY
    ),
    output: str = cli.formats(),
) -> int:
    """Look for datasets in repositories.

    Only datasets whose name or id contains the text are listed. The first column is for `odfchain pull`.
    """
    workspace = open_workspace()
    places = [repository] if repository else [str(known.name) for known in workspace.repositories.list()]
    if not places:
        message = "no repository is known"
        raise errors.UsageError(message, hint="name one: --repo URL, or `odfchain repo add NAME URL`")
    token = cli.token_for([workspace.sharing.repository_url(repository)] if repository else [])
    rows, code = [], 0
    for place in places:
        try:
            with TerminalProgress().later("Searching the repositories"):
                found = workspace.sharing.datasets_of(place, token=token)
        except errors.OdfchainError as error:
            report_error(error)
            # the first failure decides, and the other repositories are still searched
            code = code or error.exit_code
            continue
        prefix = str(workspace.sharing.repository_url(place)) if "/" in place else f"{place}/"
        rows += [
            {"dataset": f"{prefix}{entry.alias}"}
            | screen.record(entry, "kind", "records", "size", "blocks", "id", "head")
            for entry in found
            if entry.matches(text)
        ]
    if rows or not code:
        columns = _FOUND if output == "table" else [*_FOUND, "id", "head"]
        screen.print_records(rows, columns, output, shown={"size": human_size}, right=_FOUND[2:])
    return code


@cli.group("repo")
def repo_command() -> None:
    """Give names to places that have datasets."""


@cli.command("add", repo_command)
def repo_add(
    name: str = cli.argument(),
    url: str = cli.argument(),
    require_signature: bool = cli.option("Refuse datasets from there whose head is not signed."),
    max_age: float | None = cli.option("Refuse heads from there whose signature is older, such as 7d."),
) -> None:
    """Make a repository known by a name.

    NAME/DATASET is then the dataset below its URL. The rules for signatures hold for every dataset below the
    URL, however it is named. The owner's key has to have signed the newest block.
    """
    from odfchain import RepoName, SignaturePolicy

    policy = signature_policy(require=require_signature or None, max_age=max_age) or SignaturePolicy()
    known = open_workspace().repositories.add(RepoName(name), url, policy)
    say(f"{known.name} is {known.url}")


@cli.command("list", repo_command)
def repo_list(output: str = cli.formats()) -> None:
    """List the repositories that the workspace knows."""
    rows: list[dict[str, Any]] = [
        {"name": str(known.name), "url": str(known.url), **_wanted(known.policy, people=output == "table")}
        for known in open_workspace().repositories.list()
    ]
    if not rows and output == "table":
        say("no repositories yet; make one known with `odfchain repo add NAME URL`")
        return
    screen.print_records(rows, list(rows[0]) if rows else ["name", "url"], output, keys=2)


def _wanted(policy: SignaturePolicy, *, people: bool) -> dict[str, Any]:
    if people:
        return {"signature": str(policy)}
    return {"requireSignature": policy.required, "maxSignatureAgeSeconds": policy.max_age}


@cli.command("delete", repo_command)
def repo_delete(name: str = cli.argument(cli.REPOSITORY)) -> None:
    """Forget a repository. Datasets that were pulled from there stay."""
    from odfchain import RepoName

    open_workspace().repositories.delete(RepoName(name))
    say(f"forgot {name}")


@cli.group("alias", repo_command)
def repo_alias() -> None:
    """Remember default places to pull from and to push to."""


@cli.command("list", repo_alias)
def alias_list(datasets: tuple[str, ...] = cli.argument(cli.DATASET), output: str = cli.formats()) -> None:
    """List the places that datasets are pulled from and pushed to."""
    workspace = open_workspace()
    found = [d for name in datasets for d in workspace.matching(name)] if datasets else workspace
    rows = [
        {"dataset": str(dataset.alias), "kind": kind, "alias": _without_password(alias)}
        for dataset in found
        for kind in ("pull", "push")
        for alias in dataset.aliases(kind)
    ]
    screen.print_records(rows, ["dataset", "kind", "alias"], output, keys=3)


@cli.command("add", repo_alias)
def alias_add(
    dataset: str = cli.argument(cli.DATASET),
    alias: str = cli.argument(metavar="URL|REPOSITORY/NAME"),
    kind: str | None = cli.one_of(pull="A place to pull from.", push="A place to push to."),
) -> None:
    """Remember a place for a dataset. It comes before the places that are known already."""
    found = open_workspace()[dataset]
    known = found.add_alias(_kind(kind), alias)
    say(f"{found.alias}: {kind} {_without_password(known)}")


@cli.command("delete", repo_alias)
def alias_delete(
    dataset: str = cli.argument(cli.DATASET),
    alias: str | None = cli.argument(),
    everything: bool = cli.option("Forget all places of this kind.", "--all"),
    kind: str | None = cli.one_of(pull="A place to pull from.", push="A place to push to."),
) -> None:
    """Forget a place of a dataset."""
    if (alias is None) != everything:
        raise errors.UsageError("name the place to forget, or use --all")
    found = open_workspace()[dataset]
    for item in found.delete_alias(_kind(kind), alias):
        say(f"{found.alias}: forgot {kind} {_without_password(item)}")


def _kind(kind: str | None) -> str:
    if kind is None:
        raise errors.UsageError("say which: --pull or --push")
    return kind


def _without_password(alias: str) -> str:
    from odfchain.storage.locations import PeerUrl

    if "://" not in alias:
        return alias
    try:
        return str(PeerUrl.parse(alias))
    except errors.UnsupportedPeerError:
        # what is not understood may hold a password anywhere
        return "?"


# `odfchain login`: a token for a server is kept.

# Limit of standard input [characters]: more than any node takes.
_PASSWORD_CHARACTERS = 4_096


@cli.command("login")
def login_command(
    place: str | None = cli.argument(cli.REPOSITORY, metavar="URL|REPOSITORY"),
    from_stdin: bool = cli.option("Read the token from standard input.", "--token-stdin"),
    user: str | None = cli.option("Ask the node for a token, as this user, with a password.", "NAME"),
    password_stdin: bool = cli.option("Read that password from standard input."),
    plain_http: bool = cli.option(
        "Accept that anyone on the network path can read token and password (http, no https)."
    ),
    output: str = cli.formats(),
) -> None:
    """Keep a token for a server, or list the servers.

    The command asks for the token, and never shows it. It is kept in a file of yours (mode 0600) outside of
    workspaces. It is sent to this scheme, host and port only, by every pull, fetch and search there.
    ODFCHAIN_TOKEN goes before it.

    A node (odf+https://…) is asked whether it knows the token. A node that has users gives a token for a
    password. The command asks for the password, sends it there once, and keeps it nowhere.
    """
    from odfchain.transfer.credentials import Credentials

    credentials = Credentials.of_user()
    if place is None:
        origins = credentials.origins()
        if not origins and output == "table":
            say("no tokens are kept; `odfchain login URL` keeps one")
            return
        screen.print_records([{"origin": origin} for origin in origins], ["origin"], output)
        return
    url = _peer_url(place)
    _check(url, from_stdin=from_stdin, user=user, password_stdin=password_stdin)
    if url.is_in_clear and not plain_http:
        message = f"{url}: over plain http anyone on the network path can read the token"
        raise errors.AccessError(message, hint="use https, or accept it with --plain-http")
    token = _typed_token(url, from_stdin=from_stdin, user=user, password_stdin=password_stdin)
    origin = credentials.put(url, token)
    say(f"the token for {origin} is kept in {credentials.path}")
    if url.is_in_clear:
        say("warning: it goes over plain http: anyone on the network path can read it")


def _check(url: PeerUrl, *, from_stdin: bool, user: str | None, password_stdin: bool) -> None:
    if password_stdin and user is None:
        raise errors.UsageError("--password-stdin is the password of --user NAME")
    if from_stdin and user is not None:
        message = "--token-stdin and --user contradict each other: a token, or a user with a password"
        raise errors.UsageError(message)
    if user is not None and not url.is_smart:
        message = f"{url}: passwords are taken by nodes, and this is a web server"
        raise errors.UsageError(message, hint=f"if it is a node, write odf+{url}")


def _typed_token(url: PeerUrl, *, from_stdin: bool, user: str | None, password_stdin: bool) -> str:
    from odfchain.transfer.credentials import NodeAccounts

    if from_stdin:
        # a line break and one character more: a token that is too long is refused, not cut
        return _known(url, _read_line(SHARING.token_bytes + 2).strip())
    if password_stdin:
        # no `strip`: blanks may be part of a password
        password = _read_line(_PASSWORD_CHARACTERS).removesuffix("\n").removesuffix("\r")
        return NodeAccounts(url).log_in(user or "", password)
    if not screen.is_interactive():
        what, flag = ("token", "--token-stdin") if user is None else ("password", "--password-stdin")
        message = f"standard input is not a terminal: no {what} can be asked for"
        raise errors.UsageError(message, hint=f"pipe it in and use {flag}")
    if url.is_smart and user is None:
        user = screen.ask_text(f"User at {url} (empty, if you have a token)") or None
    if user is not None:
        return NodeAccounts(url).log_in(user, screen.ask_text(f"Password of {user}", hidden=True))
    return _known(url, screen.ask_text(f"Token for {url}", hidden=True).strip())


def _read_line(most: int) -> str:
    # the first line that is piped in, or as many characters of it; empty where that is no text
    try:
        return sys.stdin.readline(most) if sys.stdin is not None else ""
    except UnicodeDecodeError:
        return ""


def _known(url: PeerUrl, token: str) -> str:
    from odfchain.transfer.credentials import NodeAccounts

    if url.is_smart and (problem := NodeAccounts(url).check_token(token)) is not None:
        say(f"warning: the token could not be checked: {problem}")
    return token


@cli.command("logout")
def logout_command(
    place: str | None = cli.argument(cli.REPOSITORY, metavar="URL|REPOSITORY"),
    everything: bool = cli.option("Forget all tokens.", "--all"),
) -> None:
    """Forget the token for a server."""
    from odfchain.transfer.credentials import Credentials

    if (place is None) != everything:
        raise errors.UsageError("name the server whose token to forget, or use --all")
    url = _peer_url(place) if place is not None else None
    gone = Credentials.of_user().remove(url)
    if url is not None and not gone:
        raise errors.UsageError(f"no token is kept for {url}", hint="`odfchain login` lists those that are")
    for origin in gone:
        say(f"forgot the token for {origin}")


def _peer_url(place: str) -> PeerUrl:
    from odfchain.storage.locations import PeerUrl

    if "://" in place:
        return PeerUrl.parse(place)
    return open_workspace().sharing.repository_url(place)
