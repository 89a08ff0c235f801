"""What assembling a sink refuses before it reaches anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.sink.test_load import MINIMAL

from headgate.control_protocol.errors import ConfigurationError
from headgate.sink.assembly import open_task
from headgate.sink.load import parse
from headgate.sink.settings import TransformSettings


def test_a_task_in_somebodys_loop_takes_no_transform() -> None:
    settings = replace(parse(MINIMAL), transform=TransformSettings(sql="SELECT id FROM records"))
    opening = open_task(settings, steering=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a transform needs Spark"), opening:
        pass
