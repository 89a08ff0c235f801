"""A fleet's pages in a real browser, on a phone and on a desktop, with JavaScript off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from support.made_up_fleet import MadeUpFleet, made_up_fleet
from unit.operations.http.conftest import Client
from unit.operations.http.test_fleet_routes import MadeUpServed
from unit.operations.http.test_fleet_routes import serve as serve_fleet
from unit.operations.http.test_server import NASTY
from unit.operations.http.test_status_page_in_a_browser import Seen, chromium, seen

from headgate.runtime.fleet.sink_life import LifeState

__all__ = ["chromium", "seen", "serve_fleet"]  # fixtures
Serve = Callable[..., AbstractContextManager[Client]]


def test_a_fleet_fits_the_screen_is_searched_and_leads_to_its_sinks(
    seen: Seen, serve_fleet: Serve
) -> None:
    with serve_fleet(MadeUpServed(made_up_fleet())) as client:
        seen.open(client.url)
        assert seen.overflow <= 0
        assert "Fleet city" in seen.page.inner_text("h1")
        seen.page.fill("input[name=q]", "sigsegv")
        seen.page.click("button")
        seen.page.wait_for_url("**/?q=sigsegv")
        assert seen.page.locator('a[href^="/sinks/"]').count() == 1
        seen.page.click("text=error 1")
        seen.page.wait_for_url("**/?q=sigsegv&show=error")
        seen.page.click("text=poison")
        seen.page.wait_for_url("**/sinks/poison")
        assert "HG-108" in seen.page.inner_text("body")
        assert seen.overflow <= 0
        seen.page.click("text=all sinks")
        seen.page.click("text=quiet#2")
        seen.page.wait_for_url("**/sinks/quiet%232")
        assert "quiet#2" in seen.page.inner_text("h1")
    assert seen.complaints == []
    assert {url.split("/")[2] for url in seen.asked if url.startswith("http")} == {
        client.url.rpartition("/")[2]
    }


def test_long_and_hostile_texts_neither_run_nor_widen_the_page(
    seen: Seen, serve_fleet: Serve
) -> None:
    fleet = MadeUpFleet()
    for name in (NASTY, "x" * 200, "a b\nc"):
        fleet.spec(name, actor=NASTY)
        fleet.tell(
            name, state=LifeState.ERROR, worker=NASTY, code="HG-207", text=f"{NASTY} {'y' * 3_000}"
        )
    fleet.worker(NASTY, (0,), release="z" * 100)
    served = MadeUpServed(fleet, fleet.latest(problem=NASTY, age_ms=3_600_000))
    with serve_fleet(served) as client:
        seen.open(client.url)
        assert seen.page.inner_text("body").count("<script>alert(1)</script>") >= 3
        assert seen.page.locator("script, img, iframe, object").count() == 0
        assert seen.overflow <= 0
        seen.page.locator('a[href^="/sinks/"]').first.click()
        seen.page.wait_for_url("**/sinks/*")
        assert seen.page.locator("script, img, iframe, object, form").count() == 0
        assert seen.overflow <= 0
    assert seen.complaints == []
