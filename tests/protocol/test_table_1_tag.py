"""TABLE-1: each sink owns one tag per table and branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol.identifiers import SinkName, tag_name

SINKS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True).map(SinkName)
BRANCHES = st.from_regex(r"[A-Za-z0-9._@-]{1,20}", fullmatch=True)


def test_on_main_the_tag_is_the_sinks_name() -> None:
    assert tag_name(SinkName("rides")) == "headgate-rides"


def test_f71_another_branch_has_another_tag() -> None:
    assert tag_name(SinkName("rides"), "audit") == "headgate-rides@audit"


@given(SINKS, BRANCHES, SINKS, BRANCHES)
def test_tags_of_two_sinks_or_branches_never_meet(
    sink: SinkName, branch: str, other: SinkName, other_branch: str
) -> None:
    same = (sink, branch) == (other, other_branch)
    assert (tag_name(sink, branch) == tag_name(other, other_branch)) is same
