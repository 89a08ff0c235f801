"""Takes ``SELECT ... FROM records WHERE ...`` apart, to run it with the record's number added.

It accepts only a statement that gives at most one row per record, and the same one whatever else is
in the batch. sqlglot judges; the parts are the user's own text, which Spark reads unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from headgate.control_protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokens import Token

VIEW = "records"
_FORM = 'it is "SELECT expressions FROM records", with or without WHERE'
_CLAUSES = frozenset({"expressions", "from", "from_", "where"})
_SEVERAL_ROWS = frozenset(
    {"explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode"}
    | {"posexplode_outer", "stack", "variant_explode", "variant_explode_outer"}
)


@dataclass(frozen=True, slots=True)
class SelectText:
    """Holds a parsed SELECT.

    ``items``: the expressions; ``names``: of their columns, if the text tells.

    ``star``: whether all columns of the records are among them; ``where``: empty for none.
    """

    items: tuple[str, ...]
    names: tuple[str, ...]
    star: bool
    alias: str
    where: str


def parse_select(sql: str) -> SelectText:
    """Raises ``ConfigurationError`` that says which part of the statement is refused, and why."""
    select = _parse_statement(sql)
    _require_supported_clauses(select)
    _require_supported_expressions(select)
    table = _require_only_view(select)
    items, where = _split_items_and_where(sql)
    return SelectText(
        items=items,
        names=tuple(item.alias_or_name for item in select.expressions),
        star=any(_is_star_of(item, table) for item in select.expressions),
        alias=table.alias or VIEW,
        where=where,
    )


def _is_star_of(item: exp.Expression, table: exp.Table) -> bool:
    """Return whether it is all columns of the records, not all fields of a struct."""
    from sqlglot import exp

    if not isinstance(item, exp.Column):
        return bool(item.is_star)
    return (
        item.is_star and len(item.parts) == 2 and item.table.lower() == table.alias_or_name.lower()
    )


def _select_error(what: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError(f"transform.sql: {what}", hint or _FORM)


def _parse_statement(sql: str) -> exp.Select:
    try:
        import sqlglot
        from sqlglot import exp
    except ImportError as error:
        raise ConfigurationError(
            "transform.sql needs sqlglot, which is not installed", 'pip install "headgate[spark]"'
        ) from error
    try:
        statements = sqlglot.parse(sql, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _select_error(f"cannot be read: {reason}") from error
    select = statements[0]
    if len(statements) != 1 or not isinstance(select, exp.Select) or not select.expressions:
        raise _select_error("is not one SELECT")
    return select


def _require_supported_clauses(select: exp.Select) -> None:
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            raise _select_error(
                f"{name.strip('_').upper()} is not taken: each record must become at most one row, "
                "whatever else is in its batch",
                "write it as a Python function (transform.python), or into a view of the table",
            )


def _require_supported_expressions(select: exp.Select) -> None:
    from sqlglot import exp

    refused: tuple[tuple[type[exp.Expression], str], ...] = (
        (exp.Window, "a window function"),
        (exp.AggFunc, "an aggregate function"),
        (exp.UDTF, "a function of several rows"),
        (exp.Explode, "a function of several rows"),
        (exp.Subquery, "a subquery"),
    )
    for node in select.walk():
        if isinstance(node, exp.Select) and node is not select:
            raise _select_error("a subquery is not taken")
        for kind, words in refused:
            if isinstance(node, kind):
                raise _select_error(f"{words} is not taken: {node.sql(dialect='spark')}")
        if isinstance(node, exp.Func) and _function_name(node) in _SEVERAL_ROWS:
            raise _select_error(
                f"a function of several rows is not taken: {node.sql(dialect='spark')}"
            )


def _function_name(function: exp.Func) -> str:
    return str(function.name if function.key == "anonymous" else function.sql_name()).lower()


def _require_only_view(select: exp.Select) -> exp.Table:
    from sqlglot import exp

    source = select.args.get("from_") or select.args.get("from")
    table = source.this if source else None
    if not isinstance(table, exp.Table) or table.name.lower() != VIEW or table.db:
        raise _select_error(f"it must read FROM {VIEW}")
    for name, value in table.args.items():
        if value and name not in ("this", "alias"):
            raise _select_error(f"{name.upper()} behind {VIEW} is not taken")
    return table


def _split_items_and_where(sql: str) -> tuple[tuple[str, ...], str]:
    """Return the texts between SELECT, the commas, FROM and WHERE, unchanged."""
    import sqlglot
    from sqlglot.tokens import TokenType

    tokens = sqlglot.tokenize(sql, dialect="spark")
    opening = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
    closing = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
    marks = {TokenType.SELECT, TokenType.COMMA, TokenType.FROM, TokenType.WHERE}
    cuts: list[Token] = []
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.token_type in opening) - (token.token_type in closing)
        # Outside parentheses "a IS DISTINCT FROM b" and a field of such a name begin no clause.
        inside = place > 0 and tokens[place - 1].token_type in (TokenType.DISTINCT, TokenType.DOT)
        if depth == 0 and token.token_type in marks and not inside:
            cuts.append(token)
    until_from = next(i for i, token in enumerate(cuts) if token.token_type is TokenType.FROM)
    items = [
        sql[before.end + 1 : after.start].strip()
        for before, after in pairwise(cuts[: until_from + 1])
    ]
    wheres = [token for token in cuts if token.token_type is TokenType.WHERE]
    return tuple(items), sql[wheres[0].end + 1 :].strip().rstrip(";") if wheres else ""
