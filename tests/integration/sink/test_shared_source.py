"""The same sink file under another name."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy

from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.wide]


def test_the_same_file_under_another_name(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    copy = deploy({"name": "copy", "source": {"topics": sink.topics}})
    result = CliRunner().invoke(main, ["check", str(copy.sink_file), "--json"])
    answers = {answer["what"]: answer for answer in json.loads(result.stdout)}
    assert result.exit_code == 2
    assert answers["stored offsets"]["code"] == "HG-113"
    assert "table.shared_with" in answers["stored offsets"]["hint"]
    copy.start()
    copy.stopped_by_itself("HG-113")
    sink.judge()
    copy.change({"table": {"shared_with": ["sink"]}})
    copy.start()
    copy.wait_until_lag_zero()
    copy.stop()
    sink.stop()
    assert sink.rows().num_rows == 2_000
    report = audit(sink.settings)
    assert [finding.what for finding in report.findings] == ["records-shared"]
    assert (report.rows, report.distinct) == (2_000, 1_000)
    assert report.surplus == {"sink copy": 1_000}
    assert audit(copy.settings).is_well
