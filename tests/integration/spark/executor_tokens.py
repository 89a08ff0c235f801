"""Asks Spark's executors for their tokens, in a process of its own with its own Spark session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headgate.config.load import parse
from headgate.config.sink_sections import WriterKind
from headgate.control_protocol.errors import HeadgateError
from headgate.kafka.authentication import token_keeper_for
from headgate.operations.check.table import TableCheck


def ask_executors_twice(text: str, master: str, token_file: Path) -> tuple[str, str]:
    """Ask, remove the token's file, and ask again: return the answer and the error."""
    settings = parse(text)
    spark = replace(settings.spark, writer=WriterKind.SPARK, master=master, parallelism=1)
    check = TableCheck(replace(settings, spark=spark))
    well = check.check_executor_tokens()
    keeper = token_keeper_for(settings.kafka)
    assert keeper is not None
    keeper.require_token()
    token_file.unlink()
    try:
        check.check_executor_tokens()
    except HeadgateError as error:
        assert keeper.current_token().text
        return well, str(error)
    raise AssertionError("the executors got a token without its file")
