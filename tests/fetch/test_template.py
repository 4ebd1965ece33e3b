"""Templates: what they stand for, what is no template, and that values stay out of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import FetchError, IngestError
from odfchain.storage.locations import public_name, redact
from odfchain.storage.template import expand, names_in
from odfchain.text import one_line, printable
from tests.kit.support import conformance

CASES = {case["id"]: case for case in conformance("polling_cases")["cases"] if case["area"] == "template"}


@pytest.mark.parametrize("case", ["template.default", "template.int", "template.float", "template.str"])
def test_defaults(case: str) -> None:
    assert expand(CASES[case]["given"], {}) == CASES[case]["expect"]


def test_something_else_for_a_default() -> None:
    case = CASES["template.bad"]
    with pytest.raises(FetchError, match="qwe1 }} is not a template") as caught:
        expand(case["given"], {"test2": "set"})
    assert "default may also be a number" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${{env.A}}", "1"),
        ("${{  env.A  }}x${{ env.B }}", "1x2"),
        ("${{ env.A || 'other' }}", "1"),
        ('${{ env.X || "in double" }}', "in double"),
        ("${{ env.X || '' }}", ""),
        ("${{ env.X || 'a }} b' }}", "a }} b"),
        ("${{ env.X || -7 }}", "-7"),
        ("${{ env.EMPTY || 'not this' }}", ""),
        ("${{ env.X || env.A || 'x' }}", "1"),
        ("${{ env.X || env.Y || 'x' }}", "x"),
        ("${{ env.B||env.A }}", "2"),
        ("${{ 'text' }}", "text"),
        ('${{ "env.A" }}', "env.A"),
        ("${{ 42 }}${{ -0.5 }}", "42-0.5"),
        ("${{ 'first' || env.A }}", "first"),
        ("${{ env.X || 'env.A || 1' }}", "env.A || 1"),
        ("${{ env.X\n || env.Y ||\t7 }}", "7"),
        ("${{ env.1a }}${{ env.1 }}", "34"),
        ("${{ env.X || env.-_9 }}", "5"),
        ("${{ env.2b || 1 }}", "1"),
        ("$A ${B} {{ C }} $$ }}", "$A ${B} {{ C }} $$ }}"),
    ],
)
def test_values_and_defaults(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2", "EMPTY": "", "1a": "3", "1": "4", "-_9": "5"}) == expected


@pytest.mark.parametrize(
    "text",
    ["${{", "${{ env.A", "${{ A }}", "${{ secrets.A }}", "${{ env. }}", "${{ env.A | 'x' }}",
     "${{ env.A || env.B || }}", "${{ || env.A }}", "${{ }}", "${{ env.A env.B }}", "${{ env.A || || 1 }}",
     "${{ 'a' 'b' }}", "${{ 1 2 }}", "${{ true }}", "${{ 'x\" }}", "${{ env.A && 1 }}",
     "${{ env.A || 'x }}", "${{ env.A || x }}", "${{ env.A || 1. }}", "${{ env.1.a }}", "${{ env.ä }}",
     "${{ env.1 a }}", "${{ 1a }}", "${{ env.A }"],
)  # fmt: skip
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(FetchError, match="is not a template"):
        expand(text, {"A": "1"})


def test_a_missing_variable_is_named_with_the_place_to_define_it() -> None:
    with pytest.raises(IngestError) as caught:
        expand("http://host/${{ env.KEY }}", {"OTHER": "s3cret"}, where="header X-Key")
    assert str(caught.value) == "header X-Key: the variable KEY of ${{ env.KEY }} has no value"
    assert "-e KEY=VALUE, or `odfchain config set ingest.variables.KEY VALUE`" in str(caught.value.hint)
    assert caught.value.exit_code == 3, "the source was not asked"
    assert "s3cret" not in str(caught.value) + str(caught.value.hint)


def test_when_no_alternative_has_a_value_all_are_named() -> None:
    with pytest.raises(IngestError) as caught:
        expand("${{ env.A || env.B }}", {"C": "s3cret"})
    assert str(caught.value) == "none of the variables A, B in ${{ env.A || env.B }} has a value"


def test_a_long_template_that_is_none_is_found_out_at_once() -> None:
    for text in ("${{ env.A" + " || env.A" * 20_000, "${{" + " " * 100_000, "${{ '" + "'" * 100_000):
        with pytest.raises(FetchError):
            expand(text, {})


@given(st.text(), st.text())
def test_values_are_never_expanded_again(value: str, other: str) -> None:
    assert expand("<${{ env.A }}>", {"A": value + "${{ env.B }}", "B": other}) == f"<{value}${{{{ env.B }}}}>"


def test_names_in_texts() -> None:
    assert names_in(["${{ env.A }}", "x${{ env.B || 'd' }}", "${{ env.C }}"]) == {"A", "B", "C"}
    assert names_in(["${{ env.A || env.B || 'env.D' }}"]) == {"A", "B"}, "whichever is taken"
    assert names_in(["${{ env.1a || env.2 || 3 }}"]) == {"1a", "2"}


def test_redacting() -> None:
    assert redact("a/b a%2Fb x c&d c%26d", ["a/b", "c&d", "c"]) == "*** *** x *** ***"
    assert redact("nothing", []) == "nothing"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/p?q=${{ env.K }}", "https://host/p?q=${{ env.K }}"),
        ("https://user:pass@host/p@q", "https://host/p@q"),
        ("https://a@b@host/", "https://host/"),
        ("https://${{ env.U }}:${{ env.P || 'a/b' }}@host/", "https://host/"),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
        ("http://host/\n\x1b[31m", "http://host/ \\x1b[31m"),
        ("http://host/?a@b", "http://host/?a@b"),
        ("https://host/a.csv?token=s3cret", "https://host/a.csv?token=…"),
        ("https://host/a.csv?page=2&appid=s3cret&empty=", "https://host/a.csv?page=…&appid=…&empty="),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=s3cret&X-Amz-Date=1",
         "https://b.s3.amazonaws.com/k?X-Amz-Signature=…&X-Amz-Date=…"),
        ("https://a.blob.core.windows.net/c/x?sv=2022&sig=s3cret%3D;se=1",
         "https://a.blob.core.windows.net/c/x?sv=…&sig=…;se=…"),
        ("https://host/a;jsessionid=s3cret/b?x", "https://host/a;jsessionid=…"),
        ("https://host/?next=https://o/?token=s3cret", "https://host/?next=…"),
        ("https://host/?0123456789abcdef-s3cret", "https://host/?…"),
        ("https://host/?a=1&token%3Ds3cret", "https://host/?a=…&…"),
        ("https://host/a#access_token=s3cret", "https://host/a"),
        ("https://host/?k=Bearer ${{ env.K }}s3cret", "https://host/?k=…"),
        ("https://host/?k=${{ env.K || 's3cret&x' }}&l=${{ 's3cret' }}",
         "https://host/?k=${{ env.K || … }}&l=${{ … }}"),
        ("https://user:s3cret/x@host/a", "https://***@host/a"),
        ("https://user:s3cret?x@host/a", "https://***@host/a"),
        ("https://user:s3cret#x@host/a", "https://***@host/a"),
        ("ftp://user:1?s3cret@host/a", "ftp://***@host/a"),
        ("HTTPS://s3cret@host/", "HTTPS://host/"),
        ("${{ env.S }}://u:s3cret@host/", "${{ env.S }}://host/"),
        ("abfss://u:s3cret@account.dfs.core.windows.net/x", "abfss://account.dfs.core.windows.net/x"),
        ("s3://bucket/k?versionId=s3cret", "s3://bucket/k?versionId=…"),
    ],
)  # fmt: skip
def test_names_of_urls(url: str, name: str) -> None:
    assert public_name(url) == name


@given(st.text(), st.integers(1, 50))
def test_shown_text_is_one_bounded_line(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    assert printable(line) == line
