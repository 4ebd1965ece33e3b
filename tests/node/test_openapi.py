"""The document of the interface: valid, whole, and true for requests that it allows and others (case 59)."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.generation import GenerationMode
from starlette.routing import Route

import odfchain as odf
from odfchain.node.site import OPERATIONS, PAGES
from tests.kit.node_cases import case
from tests.kit.queried_workspace import add_numbers
from tests.kit.running_node import RunningNode, running_node

KNOWN = case(59)


def document(node: RunningNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.ask("/-/openapi.json").body)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node")
    add_numbers(odf.init(path), "stations", [3, 2])
    return path


def test_it_is_valid_and_has_every_route(folder: Path) -> None:
    with running_node(folder, sql=True) as node:
        found = document(node)
        OpenAPIV31SpecValidator(found).validate()
        routed = {
            (re.sub(r":\w+}", "}", route.path), method)
            for route in node.node._router.routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"
        }
    described = {(path, method.upper()) for path, methods in found["paths"].items() for method in methods}
    unnamed = set(map(tuple, KNOWN["unnamed"]))
    assert {(path, m) for path, m in routed - described if not path.startswith("/-/style.")} == unnamed
    assert len(described) > len(OPERATIONS) + len(PAGES)


@pytest.mark.parametrize("target", KNOWN["facts"])
def test_facts_of_pages_are_as_described(troubled: Path, target: dict[str, str]) -> None:
    with running_node(troubled, sql=True) as node:
        reply = node.ask(target["target"])
        (content,) = document(node)["paths"][target["path"]]["get"]["responses"]["200"]["content"].values()
    assert reply.status == 200, reply.text
    Draft202012Validator(content["schema"]).validate(json.loads(reply.body))


def ask(folder: Path, examples: int, *modes: GenerationMode) -> int:
    """The number of requests that were made, after as many for each operation."""
    asked = 0
    with running_node(folder, sql=True) as node:
        schema = schemathesis.openapi.from_dict(document(node))
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in modes:

                @settings(
                    max_examples=examples,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    database=None,
                )
                @given(operation.as_strategy(generation_mode=mode))
                def run(made: Any) -> None:
                    nonlocal asked
                    asked += 1
                    if "ds" in (made.path_parameters or {}) and len(str(made.path_parameters["ds"])) % 2:
                        made.path_parameters["ds"] = "stations"
                    if "wait" in (made.query or {}):
                        made.query["wait"] = 0
                    assert made.call(base_url=node.url.rstrip("/"), timeout=60).status_code != 500

                with contextlib.suppress(
                    Unsatisfiable
                ):  # there is nothing wrong to be said without parameters
                    run()
        assert node.problems == []
    return asked


def test_no_request_ends_with_500(folder: Path) -> None:
    assert ask(folder, 1, GenerationMode.POSITIVE) > len(OPERATIONS)


@pytest.mark.soak
def test_two_thousand_requests_end_without_500(folder: Path) -> None:
    both = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
    assert ask(folder, KNOWN["examples"] // 30, *both) >= KNOWN["examples"]
