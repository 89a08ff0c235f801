"""A fleet's pages, answers and specs, asked by a real HTTP client; no broker is behind them."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import pytest
from support.made_up_fleet import NOW, SLOTS, MadeUpFleet, made_up_fleet
from unit.config.test_load import MINIMAL
from unit.operations.http.conftest import GUARDED, OPERATOR, VIEWER, Client
from unit.operations.http.test_server import NASTY

from headgate.config.setting_types import Properties, Secret
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import FleetChangedMeanwhile, RetryLater
from headgate.control_protocol.message_encoding import Skipped, SkipReason
from headgate.operations.http import fleet_knowledge, sink_status_cache
from headgate.operations.http.fleet_knowledge import FollowedFleet, Known
from headgate.operations.http.fleet_page import ROWS_PER_PAGE, Choice, fleet_page, fleet_sink_page
from headgate.operations.http.fleet_routes import Asked, ServedFleet
from headgate.operations.http.routes import Site
from headgate.operations.http.server import serving_http
from headgate.runtime.fleet.fleet_changes import FleetPlanner, Occasion, Plan
from headgate.runtime.fleet.fleet_records import SinkSpec
from headgate.runtime.fleet.fleet_view import CommandRecord
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

SETTINGS = WorkerSettings(kafka=Properties({"bootstrap.servers": "127.0.0.1:1"}), http=GUARDED)
FILE = MINIMAL.replace('"trips"', '"zones"', 1)


class Told(FollowedFleet):
    """Knows what it was told."""

    def __init__(self, known: Known | None) -> None:
        super().__init__(SETTINGS)
        self.told = known

    def latest(self) -> Known | None:
        return self.told


class MadeUpServed(ServedFleet):
    """Changes records in memory, as the topic's readers would see them."""

    def __init__(self, fleet: MadeUpFleet, known: Known | None = None) -> None:
        super().__init__(Told(known or fleet.latest()))
        self.records = fleet.records
        self.written: list[Plan] = []

    def change_specs(
        self, plan_change: FleetPlanner, asked: Asked, *, creates_topics: bool = False
    ) -> Plan:
        del creates_topics
        plan = plan_change(self.records, Occasion(asked.actor, NOW, SLOTS))
        if not asked.is_dry_run:
            self.written.append(plan)
        return plan


Serve = Callable[..., AbstractContextManager[Client]]


@pytest.fixture
def serve() -> Serve:
    @contextmanager
    def opened(served: ServedFleet, http_settings: HttpSettings = GUARDED) -> Iterator[Client]:
        with serving_http("127.0.0.1:0", http_settings, Site({}, http_settings, served)) as url:
            yield Client(url)

    return opened


@pytest.fixture
def served() -> MadeUpServed:
    return MadeUpServed(made_up_fleet())


def shown(page: str) -> list[str]:
    """The sinks of a page, in its order."""
    return re.findall(r'<a href="/sinks/[^"]*">([^<]*)</a>', page)


def parsed(page: str) -> tuple[set[str], set[str]]:
    """The tags of a page, and their attributes, as a browser reads them."""
    tags, attributes = set[str](), set[str]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            attributes.update(name for name, _ in attrs)

    Reader().feed(page)
    return tags, attributes


# ------------------------------------------------------------------------------------- the list


def test_who_needs_somebody_stands_first_and_then_the_worst_lag() -> None:
    page = fleet_page(made_up_fleet().latest(), Choice())
    assert shown(page)[:4] == ["nobody", "poison", "busy", "quiet"]
    assert "HG-108 its process was killed by SIGSEGV" in page
    assert "in 16 s" in page
    assert "1.23 M" in page
    assert "wanted paused" in page
    assert "2 slots of 8 without an owner" in page


def test_a_next_try_that_has_passed_is_now() -> None:
    fleet = MadeUpFleet()
    fleet.spec("a")
    fleet.tell("a", state=LifeState.ERROR, code="HG-401", next_try_in_ms=10, ago_ms=5_000)
    assert "<td" in fleet_page(fleet.latest(), Choice())
    assert re.search(r">now</td>", fleet_page(fleet.latest(), Choice()))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (Choice(kind="error"), ["poison"]),
        (Choice(kind="drift"), ["held"]),
        (Choice(text="QUIET"), ["quiet", "quiet#2"]),
        (Choice(text="sigsegv hg-108"), ["poison"]),
        (Choice(text="worker-1", kind="running"), ["quiet#2"]),
        (Choice(text="nothing like it"), []),
        (Choice(kind="no such kind"), []),
    ],
)
def test_a_search_finds_sinks_by_name_worker_code_and_text(
    choice: Choice, names: list[str]
) -> None:
    assert shown(fleet_page(made_up_fleet().latest(), choice)) == names


def test_two_thousand_sinks_are_shown_a_page_at_a_time() -> None:
    fleet = MadeUpFleet()
    for number in range(2_000):
        fleet.runs(f"sink-{number:04}", lag_records=number)
    known = fleet.latest()
    first, last = fleet_page(known, Choice()), fleet_page(known, Choice(number=10))
    assert shown(first) == [f"sink-{n:04}" for n in range(1_999, 1_999 - ROWS_PER_PAGE, -1)]
    assert shown(last)[-1] == "sink-0000"
    assert shown(fleet_page(known, Choice(number=99))) == shown(last)
    assert 'href="/?page=2"' in first
    found = fleet_page(known, Choice(text="sink-1", number=2))
    assert 'href="/?q=sink-1&amp;page=3"' in found


def test_a_search_is_kept_in_its_links_and_its_field() -> None:
    page = fleet_page(made_up_fleet().latest(), Choice(text='a"b<c', kind="error"))
    assert 'value="a&quot;b&lt;c"' in page
    assert 'name="show" value="error"' in page
    assert 'href="/?q=a%22b%3Cc&amp;show=running"' in page


def test_old_knowledge_says_how_old_it_is(serve: Serve) -> None:
    fleet = made_up_fleet()
    known = fleet.latest(age_ms=125_000, problem="HG-401 the brokers do not answer <b>")
    with serve(MadeUpServed(fleet, known)) as client:
        for path in ("/", "/sinks/busy"):
            page = client.get(path, VIEWER).body
            assert "What stands here is 2 min old" in page
            assert "HG-401 the brokers do not answer &lt;b&gt;" in page
        told = json.loads(client.get("/api/v1/fleet", VIEWER).body)
        assert (told["age_ms"], told["problem"][:6]) == (125_000, "HG-401")


def test_before_anything_is_known_that_is_what_is_said(serve: Serve) -> None:
    served = MadeUpServed(made_up_fleet())
    served.followed.told = None  # type: ignore[attr-defined]
    with serve(served) as client:
        page = client.get("/", VIEWER)
        assert (page.status, "Nothing is known yet" in page.body) == (503, True)
        assert client.get("/api/v1/fleet", VIEWER).status == 503
        assert client.get("/api/v1/fleet/sinks/busy", VIEWER).status == 503
        assert client.get("/api/v1/sinks", VIEWER).status == 503
    assert "nothing is known yet" in str(served.followed.why_not_current())


def test_a_reader_that_makes_no_turn_is_to_be_started_again(served: MadeUpServed) -> None:
    followed = served.followed
    assert followed.why_reader_hangs() is None
    followed._turned_s -= 2 * fleet_knowledge.TURN_S_MAX
    assert "made no turn for 240 s" in str(followed.why_reader_hangs())


# ------------------------------------------------------------------------------------- one sink


def test_a_sink_s_page_shows_wanted_beside_seen(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        page = client.get("/sinks/poison", VIEWER).body
        assert "<b>HG-108</b> its process was killed by SIGSEGV; next try in 16 s" in page
        assert "number " in page
        assert "alice" in page
        assert '<a href="/sinks/poison/status">' in page
        second = client.get("/sinks/quiet%232", VIEWER)
        assert (second.status, "<h1>quiet#2</h1>" in second.body) == (200, True)
        assert client.get("/sinks/none", VIEWER).status == 404


def test_a_refused_spec_and_a_sink_that_nobody_wants_are_said() -> None:
    fleet = MadeUpFleet()
    fleet.tell("ghost")
    fleet.runs("forged", 3)
    forged = fleet.spec("forged", 3)
    assert "is wanted by nobody" in fleet_sink_page(
        fleet.latest(), fleet.latest().fleet.sinks["ghost"]
    )
    refused = CommandRecord("forged", 3, 99, NOW, Skipped(SkipReason.UNSIGNED, "somebody"))
    fleet.records.take_record(refused)
    known = fleet.latest()
    assert known.fleet.sinks["forged"].spec == forged
    assert "<b>Refused</b>: the spec at 3@99" in fleet_sink_page(known, known.fleet.sinks["forged"])
    assert shown(fleet_page(known, Choice(kind="refused"))) == ["forged"]
    assert shown(fleet_page(known, Choice()))[0] == "forged"


def test_hostile_texts_are_shown_as_text(serve: Serve) -> None:
    fleet = MadeUpFleet()
    fleet.spec(NASTY, actor=NASTY, file=NASTY)
    fleet.tell(
        NASTY,
        worker=NASTY,
        state=LifeState.ERROR,
        code=NASTY,
        text=NASTY,
        doing=NASTY,
        revision=NASTY,
        next_try_in_ms=5,
    )
    fleet.tell(NASTY, 5, worker=NASTY)
    fleet.worker(NASTY, (0,), release=NASTY)
    known = fleet.latest(problem=NASTY, age_ms=1)
    with serve(MadeUpServed(fleet, known)) as client:
        for path in ("/", f"/?q={quote(NASTY)}&show={quote(NASTY)}", f"/sinks/{quote(NASTY, '')}"):
            page = client.get(path, VIEWER)
            assert page.status == 200
            tags, attributes = parsed(page.body)
            assert not tags & {"script", "img", "iframe", "object", "embed"}
            assert not {name for name in attributes if name.startswith("on")}
            assert "\u202e" not in page.body
            assert "\x1b" not in page.body
        told = json.loads(client.get("/api/v1/fleet", VIEWER).body)
        assert told["sinks"][0]["text"] == NASTY


def test_the_file_is_shown_to_operators_only(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        assert "file" not in json.loads(client.get("/api/v1/fleet/sinks/busy", VIEWER).body)
        told = json.loads(client.get("/api/v1/fleet/sinks/busy", OPERATOR).body)
        assert (told["file"], told["lag_records"]) == ('name = "busy"\n', 1_234_567)


def test_the_list_as_json_has_every_sink_and_worker(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        told = json.loads(client.get("/api/v1/fleet", VIEWER).body)
        assert {each["sink"] for each in told["sinks"]} == {*served.followed.latest().fleet.sinks}  # type: ignore[union-attr]
        assert [each["worker"] for each in told["workers"]] == ["worker-0", "worker-1", "worker-9"]
        assert told["unowned_slots"] == [6, 7]
        names = json.loads(client.get("/api/v1/sinks", VIEWER).body)
        assert names.count("quiet") == 1


def test_a_sink_whose_file_cannot_be_read_here_says_so(serve: Serve) -> None:
    fleet = MadeUpFleet()
    fleet.spec("zones", file=FILE + '[http]\nviewer_token = "${file:/no/such/file}"\n')
    with serve(MadeUpServed(fleet)) as client:
        page = client.get("/sinks/zones/status", VIEWER)
        assert (page.status, "/no/such/file" in page.body) == (500, True)
        assert client.get("/api/v1/sinks/zones", VIEWER).status in (400, 409)


def test_what_a_sink_s_file_refers_to_is_masked_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZONES_TOKEN", "sesame-open-0123456789")
    fleet = MadeUpFleet()
    spec = fleet.spec("zones", file=FILE + '[http]\nviewer_token = "${env:ZONES_TOKEN}"\n')
    served = MadeUpServed(fleet)
    served.served_sink_of(fleet.latest().fleet.sinks[spec.key])
    assert served.redact("as sesame-open-0123456789") == "as ***"


def test_each_look_at_a_sink_resolves_what_its_file_refers_to(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    looks: list[str] = []

    def refuse_look(settings: SinkSettings, *_: object, **__: object) -> NoReturn:
        looks.append(settings.http.viewer_token.text)
        raise RetryLater("the catalog refuses the token")

    monkeypatch.setattr(sink_status_cache, "read_status", refuse_look)
    monkeypatch.setattr(sink_status_cache, "KEPT_S", 0.0)
    fleet = MadeUpFleet()
    fleet.spec("zones", file=FILE + f'[http]\nviewer_token = "${{file:{token}}}"\n')
    with serve(MadeUpServed(fleet)) as client:
        for number in range(2):
            token.write_text(f"sesame-open-012345678{number}")
            assert client.get("/api/v1/sinks/zones", VIEWER).status == 503
    assert [look[-1] for look in looks] == ["0", "1"]


# ---------------------------------------------------------------------------------------- rights

WRITES = [
    ("PUT", "/api/v1/fleet/sinks/zones"),
    ("DELETE", "/api/v1/fleet/sinks/busy"),
    *(
        ("PUT", f"/api/v1/fleet/sinks/busy/{move}")
        for move in ("pause", "resume", "stop", "start", "restart", "move", "scale")
    ),
    ("PUT", "/api/v1/fleet/workers/worker-0/drain"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_only_an_operator_changes_specs(
    serve: Serve, served: MadeUpServed, method: str, path: str
) -> None:
    with serve(served) as client:
        for asked in (path, f"{path}?dry_run=true"):
            assert client.ask(method, asked, body=FILE).status == 401
            assert client.ask(method, asked, "wrong", body=FILE).status == 401
            assert client.ask(method, asked, VIEWER, body=FILE).status == 403
    nobody = replace(GUARDED, operator_token=Secret())
    with serve(served, nobody) as client:
        got = client.ask(method, path, VIEWER, body=FILE)
        assert json.loads(got.body)["hint"] == "set http.operator_token in the worker's file"
    assert served.written == []


@pytest.mark.parametrize(
    "path",
    ["/", "/sinks/busy", "/sinks/busy/status", "/api/v1/fleet", "/api/v1/fleet/sinks/busy"],
)
def test_without_a_token_nothing_is_told(serve: Serve, served: MadeUpServed, path: str) -> None:
    with serve(served) as client:
        for token in ("", "wrong", VIEWER[:-1]):
            got = client.get(path, token)
            assert (got.status, "busy" in got.body) == (401, False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("POST", "/api/v1/fleet", 405),
        ("POST", "/api/v1/fleet/sinks/busy", 405),
        ("POST", "/api/v1/fleet/sinks/busy/pause", 405),
        ("GET", "/api/v1/fleet/sinks/busy/pause", 405),
        ("PUT", "/api/v1/fleet/sinks/busy/explode", 404),
        ("PUT", "/api/v1/fleet/sinks/none/pause", 404),
        ("DELETE", "/api/v1/fleet/sinks/none", 404),
        ("PUT", "/api/v1/sinks/busy/pause", 404),
        ("PUT", "/api/v1/sinks/busy", 405),
        ("GET", "/api/v1/fleet/nothing", 404),
        ("GET", "/sinks/../../etc/passwd", 404),
        ("GET", "/sinks/%2e%2e%2fetc", 404),
    ],
)
def test_what_cannot_be_asked_is_refused(
    serve: Serve, served: MadeUpServed, method: str, path: str, status: int
) -> None:
    with serve(served) as client:
        assert client.ask(method, path, OPERATOR).status == status
    assert served.written == []


# ---------------------------------------------------------------------------------------- specs


def specs(served: MadeUpServed) -> list[SinkSpec]:
    return [each for plan in served.written for each in plan.changes if isinstance(each, SinkSpec)]


def test_a_spec_names_who_had_it(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/busy/pause", OPERATOR)
        assert (got.status, json.loads(got.body)["changes"]) == (200, True)
    (spec,) = specs(served)
    assert (spec.key, spec.state, spec.actor) == ("busy", DesiredState.PAUSED, "http 127.0.0.1")


def test_a_dry_run_says_what_it_would_change_and_changes_nothing(
    serve: Serve, served: MadeUpServed
) -> None:
    with serve(served) as client:
        for path, body in (
            ("busy/stop", ""),
            ("zones", FILE),
            ("quiet/move", '{"to": "worker-1"}'),
        ):
            got = client.ask("PUT", f"/api/v1/fleet/sinks/{path}?dry_run=true", OPERATOR, body)
            told = json.loads(got.body)
            assert (got.status, told["dry_run"], told["changes"]) == (200, True, True), got.body
            assert told["lines"]
        again = client.ask("PUT", "/api/v1/fleet/sinks/busy/start?dry_run=1", OPERATOR)
        assert json.loads(again.body)["changes"] is False
        for query in ("dry_run", "dry_run=", "dry_run=TRUE"):
            got = client.ask("PUT", f"/api/v1/fleet/sinks/busy/stop?{query}", OPERATOR)
            assert json.loads(got.body)["dry_run"] is True
        assert client.ask("PUT", "/api/v1/fleet/sinks/busy/stop?dry_run=on", OPERATOR).status == 400
    assert served.written == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_is_put(serve: Serve, served: MadeUpServed, *, as_json: bool) -> None:
    body = json.dumps({"file": FILE, "memory_mib": 1_500}) if as_json else FILE
    with serve(served) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/zones", OPERATOR, body)
        assert (got.status, got.body.count("+ zones")) == (200, 1), got.body
    (spec,) = specs(served)
    assert (spec.key, spec.file, spec.memory_mib) == ("zones", FILE, 1_500 if as_json else 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (FILE.replace("[source]", "[sauce]"), "zones.toml"),
        (FILE + "[coordinator]\ncommit_interval_ms = -1\n", "commit_interval_ms"),
        ("name = ", "zones.toml"),
        (MINIMAL, "names sink trips, and the path sink zones"),
        (FILE + '[catalog.properties]\ns3.secret-access-key = "s3cr3ts3cr3t"\n', "zones.toml"),
        (
            FILE + '[catalog.properties]\nuri = "postgresql://me:x/s3cr3t@db/lake"\n',
            "secret in clear",
        ),
        (FILE + '[catalog.properties]\n"adls.connection-string" = "s3cr3t"\n', "secret in clear"),
        (FILE + '[telemetry.otlp_headers]\nx-api-key = "s3cr3t"\n', "secret in clear"),
        ("", "no sink file is given"),
        ("{", "the body is not JSON"),
        ('{"file":' + "[" * 60_000, "the body is not JSON"),
        ('{"file": 7}', "file is no text"),
        ('{"fail": ""}', "'fail' is not a known key"),
        ('{"file": "x", "memory_mib": -1}', "memory_mib is -1"),
        ('{"file": "x", "memory_mib": true}', "memory_mib is no number"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing_and_is_named(
    serve: Serve, served: MadeUpServed, body: str, says: str
) -> None:
    with serve(served) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/zones", OPERATOR, body)
        assert (got.status, says in json.loads(got.body)["error"]) == (400, True), got.body
        assert "s3cr3t" not in got.body
    assert served.written == []


@pytest.mark.parametrize("held", ["server-s-own-key", "latest", None])
def test_a_file_that_is_put_makes_the_server_read_nothing(
    serve: Serve, served: MadeUpServed, tmp_path: Path, held: str | None
) -> None:
    """It would read for whoever has the web's token: each reference is a worker's."""
    if held is not None:
        (tmp_path / "key").write_text(held)
    starts = FILE.replace("[source]", f'[source]\nstart_at = "${{file:{tmp_path}/key}}"', 1)
    there = f'[catalog.properties]\nuri = "sqlite:///{tmp_path}/{{}}/c.db"\n'
    with serve(served) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/zones?dry_run=1", OPERATOR, starts)
        assert got.status == 200, "the same, whatever is there"
        for folder in ("", "absent"):
            body = FILE + there.format(folder)
            got = client.ask("PUT", "/api/v1/fleet/sinks/zones?dry_run=1", OPERATOR, body)
            assert got.status == 200, got.body


def test_what_is_no_text_is_refused(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        connection = http.client.HTTPConnection(client.url.rpartition("//")[2], timeout=30)
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        connection.request("PUT", "/api/v1/fleet/sinks/zones", b"\xff\xfe", headers)
        assert connection.getresponse().status == 400
        connection.close()
    assert served.written == []


def test_every_spec_is_one_of_the_commands_specs(serve: Serve, served: MadeUpServed) -> None:
    base = "/api/v1/fleet/sinks"
    with serve(served) as client:
        for method, path, body in (
            ("PUT", f"{base}/off/start", ""),
            ("PUT", f"{base}/held/resume", ""),
            ("PUT", f"{base}/poison/restart", ""),
            ("PUT", f"{base}/quiet/move", '{"to": "worker-1"}'),
            ("DELETE", f"{base}/busy", ""),
            ("PUT", f"{base}/off/scale", '{"participants": 3}'),
            ("PUT", "/api/v1/fleet/workers/worker-0/drain", ""),
        ):
            got = client.ask(method, path, OPERATOR, body)
            assert (got.status, json.loads(got.body)["changes"]) == (200, True), got.body
    changes = [[type(each).__name__ for each in plan.changes] for plan in served.written]
    assert changes[:3] == [["SinkSpec"]] * 3
    assert changes[3][:2] == ["Removal", "SinkSpec"]
    assert changes[4] == ["Removal"]
    assert changes[5] == ["SinkSpec"] * 2
    assert {*changes[6]} == {"Drain"}


@pytest.mark.parametrize("body", ["", '{"participants": 0}', '{"participants": "3"}'])
def test_a_scale_without_a_number_is_refused(serve: Serve, served: MadeUpServed, body: str) -> None:
    with serve(served) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/busy/scale", OPERATOR, body)
        assert (got.status, "participants" in json.loads(got.body)["error"]) == (400, True)
    assert served.written == []


def test_a_worker_that_is_not_there_gets_nothing(serve: Serve, served: MadeUpServed) -> None:
    with serve(served) as client:
        for to in ("worker-9", "worker-7"):
            got = client.ask(
                "PUT", "/api/v1/fleet/sinks/busy/move", OPERATOR, json.dumps({"to": to})
            )
            assert (got.status, to in json.loads(got.body)["error"]) == (400, True)
        got = client.ask("PUT", "/api/v1/fleet/sinks/busy/move", OPERATOR)
        assert got.status == 400
        got = client.ask("PUT", "/api/v1/fleet/workers/worker-9/drain", OPERATOR)
        assert got.status == 400
    assert served.written == []


def test_somebody_else_s_change_at_the_same_time_is_a_conflict(serve: Serve) -> None:
    class Fenced(MadeUpServed):
        def change_specs(
            self, plan_change: FleetPlanner, asked: Asked, *, creates_topics: bool = False
        ) -> Plan:
            del plan_change, asked, creates_topics
            raise FleetChangedMeanwhile("somebody else changes the fleet", "again")

    with serve(Fenced(made_up_fleet())) as client:
        got = client.ask("PUT", "/api/v1/fleet/sinks/busy/pause", OPERATOR)
        assert (got.status, json.loads(got.body)["code"]) == (409, "HG-302")
