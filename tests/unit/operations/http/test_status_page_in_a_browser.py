"""The pages in a real browser, on a phone and on a desktop, with JavaScript off.

It needs Debian's package ``chromium``, or another Chromium on the path, and playwright.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from unit.operations.http.conftest import ERROR, NOW, VIEWER, Serve, report
from unit.operations.http.test_server import NASTY

from headgate.control_protocol.errors import Unreachable
from headgate.operations.status.report import ParticipantStatus
from headgate.runtime.health import LastError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1_440, "height": 900}
HOSTILE = ParticipantStatus(NASTY, "life", NASTY, (NASTY,), 0, 1)


@dataclass
class Seen:
    """What a browser complained of, and whom it asked."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.page.wait_for_selector("h1")

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return wide


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no chromium is installed")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture(params=[PHONE, DESKTOP], ids=["phone", "desktop"])
def seen(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Seen]:
    context = chromium.new_context(
        viewport=request.param,
        java_script_enabled=False,
        http_credentials={"username": "me", "password": VIEWER},
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    found = Seen(page)
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
    page.on("request", lambda asked: found.asked.append(asked.url))
    yield found
    context.close()


def test_a_page_fits_the_screen_and_the_console_is_empty(seen: Seen, serve: Serve) -> None:
    with serve(report(last_error=ERROR)) as client:
        seen.open(client.url)
        assert "trips" in seen.page.inner_text("h1")
        assert "HG-403" in seen.page.inner_text("body")
        assert seen.page.locator("svg").count() >= 1
        assert seen.overflow <= 0
        boxes = [svg.bounding_box() for svg in seen.page.locator("svg").all()]
        assert all(box["width"] > 100 and box["height"] > 20 for box in boxes)
    assert seen.complaints == []
    assert {url.rpartition("/")[0] for url in seen.asked if url.startswith("http")} == {client.url}


def test_hostile_names_are_text(seen: Seen, serve: Serve) -> None:
    error = LastError("HG-207", NASTY, NASTY, NOW, next_try_ms=NOW + 1)
    hostile = report(
        last_error=error,
        participants=(HOSTILE,),
        coordinator=NASTY,
        stopped_by=NASTY,
        notes=(NASTY,),
    )
    with serve(hostile) as client:
        seen.open(client.url)
        text = seen.page.inner_text("body")
        assert text.count("<script>alert(1)</script>") >= 3
        assert seen.page.locator("script, img, form, iframe, object").count() == 0
        assert seen.overflow <= 0
    assert seen.complaints == []


def test_the_list_of_sinks_leads_to_each_page(seen: Seen, serve: Serve) -> None:
    with serve(report("one"), report("two"), Unreachable(NASTY)) as client:
        seen.open(client.url)
        assert seen.overflow <= 0
        seen.page.click("text=two")
        seen.page.wait_for_url("**/sinks/two")
        assert "two" in seen.page.inner_text("h1")
    assert seen.complaints == []
