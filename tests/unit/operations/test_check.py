"""What ``headgate check`` says of this installation."""

from __future__ import annotations

from dataclasses import replace

from headgate.native.loops import InPython, Loops
from headgate.operations.check import _writer
from headgate.sink.settings import SinkSettings, WriterKind


def test_whether_there_was_a_c_compiler(settings: SinkSettings, either_loops: Loops) -> None:
    spark = replace(settings.spark, writer=WriterKind.IN_PROCESS)
    said = _writer(replace(settings, spark=spark))
    assert ("installed without a C compiler" in said) == isinstance(either_loops, InPython)
