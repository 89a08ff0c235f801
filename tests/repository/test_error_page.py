"""Every error has a code of its own, and a section in docs/reference/errors.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from repository.tree import ROOT

from headgate.control_protocol import errors
from headgate.control_protocol.errors import HeadgateError

PAGE = (ROOT / "docs/reference/errors.md").read_text()
SECTION = re.compile(r"^## (HG-\d{3}): [^\n]+\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def kinds(root: type[HeadgateError] = HeadgateError) -> Iterator[type[HeadgateError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def test_a_code_belongs_to_one_error_and_those_that_refine_it() -> None:
    owners: dict[str, type[HeadgateError]] = {}
    for kind in kinds():
        owner = owners.setdefault(kind.code, kind)
        assert issubclass(kind, owner), f"{kind.code} is {owner.__name__} and {kind.__name__}"


def test_the_module_is_in_the_order_of_the_codes() -> None:
    codes = [
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, HeadgateError)
    ]
    assert codes == sorted(codes)


def test_every_code_has_its_section_in_order() -> None:
    described = [code for code, _ in SECTION.findall(PAGE)]
    assert described == sorted({kind.code for kind in kinds()})


def test_a_section_says_cause_what_is_safe_and_what_to_do() -> None:
    for code, text in SECTION.findall(PAGE):
        words = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert words == ["Cause", "Safe", "Do"], code
