"""Serves the page of a sink over HTTP, and asks it as a browser and a script would."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import replace

from headgate.config.setting_types import Secret
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.operations.http.routes import Site
from headgate.operations.http.server import serving_http
from headgate.operations.http.sink_status_cache import ServedSink

_TOKEN = "operator-of-a-test"


def assert_served_without_rollback(settings: SinkSettings, rows: int) -> None:
    """The page and its JSON show the sink, with so many rows settled; a rollback is refused."""
    http = HttpSettings(operator_token=Secret(_TOKEN))
    site = Site({settings.name: ServedSink(replace(settings, http=http))}, http)
    with serving_http("127.0.0.1:0", http, site) as url:
        status, page = _ask(f"{url}/")
        assert (status, 'class="state">' in page, "Rows per commit" in page) == (200, True, True)
        assert settings.table.identifier in page
        path = f"{url}/api/v1/sinks/{settings.name}"
        status, text = _ask(path)
        assert status == 200, text
        assert sum(each["next_offset"] for each in json.loads(text)["partitions"]) == rows
        status, text = _ask(f"{path}/rollback", "POST", '{"to": "1.1"}')
        assert (status, json.loads(text)["code"]) == (409, "HG-151"), text


def _ask(url: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {_TOKEN}"}
    request = urllib.request.Request(url, body.encode() or None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
