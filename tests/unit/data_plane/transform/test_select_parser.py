"""Which SELECTs are taken: those of which every record becomes one row or none."""

from __future__ import annotations

import pytest

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.transform.select_parser import SelectText, parse_select

pytest.importorskip("sqlglot")


def test_the_parts_are_the_text_as_it_stands() -> None:
    text = parse_select("SELECT id, upper(zone) AS zone FROM records WHERE id > 3 -- the rest")
    assert text == SelectText(
        ("id", "upper(zone) AS zone"), ("id", "zone"), False, "records", "id > 3 -- the rest"
    )


def test_only_commas_and_words_of_the_statement_itself_cut() -> None:
    text = parse_select(
        "select r.a is distinct from b as d, extract(year from t) y, 'x, FROM y' z, "
        "array(1, 2)[0] v, case when a > 1 then 'WHERE' else m['a,b'] end c, xs[0], "
        "transform(xs, x -> x + 1) w from Records r where r.a in (1, 2) and b = ' from '"
    )
    assert text.items == (
        "r.a is distinct from b as d",
        "extract(year from t) y",
        "'x, FROM y' z",
        "array(1, 2)[0] v",
        "case when a > 1 then 'WHERE' else m['a,b'] end c",
        "xs[0]",
        "transform(xs, x -> x + 1) w",
    )
    assert (text.alias, text.where) == ("r", "r.a in (1, 2) and b = ' from '")


@pytest.mark.parametrize("sql", ["select * from records", "select a, r.* from records as r;"])
def test_a_star_brings_every_column(sql: str) -> None:
    assert parse_select(sql).star


@pytest.mark.parametrize(
    ("sql", "star"),
    [
        ("select id, address.* from records", False),
        ("select r.address.* from records r", False),
        ("select address.*, R.* from records r", True),
        ("select records.* from records", True),
    ],
)
def test_a_star_of_a_struct_is_not_every_column(sql: str, star: bool) -> None:
    assert parse_select(sql).star is star


def test_a_field_that_is_called_as_a_word_of_the_statement_cuts_nothing() -> None:
    text = parse_select("select tx.from, b from records where t.where = 1")
    assert (text.items, text.where) == (("tx.from", "b"), "t.where = 1")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("select distinct a from records", "DISTINCT"),
        ("select a from records limit 3", "LIMIT"),
        ("select a from records order by a", "ORDER"),
        ("select a from records sort by a", "SORT"),
        ("select a from records group by a", "GROUP"),
        ("select a from records having a = 1", "HAVING"),
        ("select a from records qualify a = 1", "QUALIFY"),
        ("select a from records join t on true", "JOINS"),
        ("select a from records, t", "JOINS"),
        ("select a from records lateral view explode(xs) t as x", "LATERALS"),
        ("with t as (select 1) select a from records", "WITH"),
        ("select /*+ repartition(3) */ a from records", "HINT"),
        ("select a from records tablesample (10 percent)", "SAMPLE"),
        ("select a from records version as of 3", "VERSION"),
        ("select count(*) from records", "aggregate"),
        ("select a, first(b) from records", "aggregate"),
        ("select row_number() over (order by a) from records", "window"),
        ("select explode(xs) from records", "several rows"),
        ("select posexplode_outer(xs) from records", "several rows"),
        ("select inline(xs) from records", "several rows"),
        ("select stack(2, 1, 2) from records", "several rows"),
        ("select json_tuple(a, 'x') from records", "several rows"),
        ("select a from (select * from records)", "subquery"),
        ("select a from records where a in (select b from t)", "subquery"),
        ("select (select 1) as a from records", "subquery"),
        ("select a from records union all select b from records", "not one SELECT"),
        ("select a from records; select b from records", "not one SELECT"),
        ("insert into t select a from records", "not one SELECT"),
        ("select from records", "not one SELECT"),
        ("", "not one SELECT"),
        ("select a", "FROM records"),
        ("select a from other", "FROM records"),
        ("select a from db.records", "FROM records"),
        ("select a fro records", "cannot be read"),
        ("select (a from records", "cannot be read"),
    ],
)
def test_what_could_make_more_or_other_rows_is_refused_in_words(sql: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_select(sql)
    assert refused.value.message.startswith("transform.sql: ")
    assert told in refused.value.message
