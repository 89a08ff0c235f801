"""What the package says it offers is there."""

from __future__ import annotations

import pytest

import headgate


@pytest.mark.parametrize("name", headgate.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(headgate, name).__name__ == name


def test_dir_shows_the_public_names_before_their_first_use() -> None:
    assert dir(headgate) == sorted(headgate.__all__)
