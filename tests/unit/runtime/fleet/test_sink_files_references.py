"""What a sink file refers to need not be readable where ``fleet apply`` runs (FLEET-6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.setting_types import Reading
from headgate.control_protocol.errors import ConfigurationError
from headgate.runtime.fleet.sink_files import require_valid_sink_file

FILE = """
name = "trips"
[source]
topics = ["trips", "trips-eu"]
{source}
[kafka]
"bootstrap.servers" = "broker:9092"
{kafka}
[table]
identifier = "db.trips"
columns = [{{ name = "id", type = "long" }}]
"""
OIDC = (
    '[kafka.auth]\ntype = "oidc"\nclient_id = "me"\nclient_secret = "${file:/not/here/secret}"\n'
    'token_url = "${env:NOT_HERE}"'
)

PROTOBUF = '[format]\ntype = "protobuf"\n[format.options]\nmessage = "a.B"\n'
CSV = '[format]\ntype = "csv"\n[format.options]\n'


def require_valid(reading: Reading, more: str = "", *, kafka: str = "", source: str = "") -> None:
    text = FILE.format(source=source, kafka=kafka) + more
    assert require_valid_sink_file(Path("trips.toml"), text, reading) == "trips"


@pytest.mark.parametrize("reading", [Reading.IF_PRESENT, Reading.NEVER])
@pytest.mark.parametrize(
    "more",
    [
        '[signal]\nurl = "${env:NOT_HERE}"',
        '[lineage]\nurl = "https://${env:NOT_HERE}:${env:NEITHER}/api/v1/lineage"',
        '[telemetry]\notlp_endpoint = "${env:NOT_HERE}"',
        '[http]\nviewer_token = "${env:NOT_HERE}"\noperator_token = "${env:NEITHER}"',
        '[http]\nlisten = "${env:NOT_HERE}"',
        '[shape]\nwhere = "${file:/not/here}"',
        '[[shape.expect]]\nname = "a"\nthat = "${file:/not/here}"',
        '[spark]\nremote = "${env:NOT_HERE}"',
        '[spark]\nmaster = "${env:NOT_HERE}"',
        '[format]\ntype = "avro"\n[format.options]\nschema = "${file:/not/here/orders.avsc}"',
        f'{PROTOBUF}descriptor = "${{base64:/not/here}}"',
        '[format]\ntype = "avro-registry"\n[format.options]\n"registry.url" = "${env:NOT_HERE}"',
    ],
    ids=lambda text: text[:40],
)
def test_fleet_6_a_value_that_is_not_here_is_not_checked(reading: Reading, more: str) -> None:
    require_valid(reading, more)


@pytest.mark.parametrize("reading", [Reading.IF_PRESENT, Reading.NEVER])
def test_fleet_6_so_are_those_of_the_source(reading: Reading) -> None:
    require_valid(reading, OIDC + '\n[spark]\nwriter = "in-process"')
    require_valid(reading, kafka='"max.poll.interval.ms" = "${env:NOT_HERE}"')
    require_valid(reading, source='start_at = "${env:NOT_HERE}"')


def test_fleet_6_what_is_here_and_what_no_value_can_mend_is_refused() -> None:
    for more, said in (
        ('[http]\nviewer_token = "${env:NOT_HERE}"\noperator_token = "${env:NOT_HERE}"', "same"),
        ('[signal]\nurl = "ftp://a"', "no URL"),
        (
            '[format]\ntype = "avr"\n[format.options]\nschema = "${env:NOT_HERE}"',
            "no record format",
        ),
        (
            f'{CSV}columns = "${{env:NOT_HERE}}"\n[table.schema]\nunknown_fields = "evolve"',
            "unknown_fields",
        ),
    ):
        with pytest.raises(ConfigurationError, match=said):
            require_valid(Reading.NEVER, more)
