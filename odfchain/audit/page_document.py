"""Reading a report document (`odfchain-report/1`) that may come from anybody: typed, and named by path.

The documents of `odfchain verify -o json` are handed on as files. A page made from one must not say more than
the document does, so what is missing, of another type, or contradicts itself is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from odfchain.errors import ManifestError
from odfchain.pages.document_node import DocumentNode

FORMAT = "odfchain-report/1"
VERDICTS = ("clean", "faulty", "incomplete")
_HINT = "a page is made from the whole output of `odfchain verify -o json`"


def checked_document(document: Mapping[str, object], path: str) -> DocumentNode:
    """The document, which is a report and does not contradict itself in what it says first.

    Raises:
        ManifestError: it is no report, of another format, or its verdict is not that of its faults.
    """
    node = DocumentNode(document, path, _HINT)
    form = node["format"]
    if form.value != FORMAT:
        form.refuse(f'"{FORMAT}"')
    verdict = node["verdict"].word(*VERDICTS)
    faulty = bool(node["faults"].items())
    for check in node["checks"].items():
        faulty |= check["state"].value == "failed" or check["faults"].number() > 0
    faulty |= any(block["state"].value == "faulty" for block in node["blocks"].items())
    if faulty != (verdict == "faulty"):
        contrary = "faults, blocks or checks say otherwise"
        raise ManifestError(
            f'the verdict is "{verdict}", its {contrary}', path=node["verdict"].path, hint=_HINT
        )
    return node
