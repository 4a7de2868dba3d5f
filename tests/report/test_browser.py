"""A page in Chromium, without a window: drawn, without errors or requests, for the pointer and for the keyboard."""

import os
import shutil
from typing import NamedTuple

import numpy as np
import pytest

import bilevel as bl
from report.made import result

pytestmark = pytest.mark.slow

SECONDS = 30  # that anything here may take
HOSTILE = "<img src=x onerror=alert(1)>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZES = {"desktop": {"width": 1200, "height": 900}, "phone": {"width": 375, "height": 740}}
DRAWN = "[...document.querySelectorAll('figure')].every(figure => figure.dataset.drawn)"


class Opened(NamedTuple):
    page: object
    events: list  # errors, warnings and dialogs of the page, and what it requested


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: of the extra browser")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # which Chromium refuses to the superuser
        started = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox, timeout=1000 * SECONDS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    names = [HOSTILE, 'a\\" + 1', *(f"clinic {i}" for i in range(23))]
    losses = np.random.default_rng(0).uniform(0.5, 2.0, (3, 30, 25))
    losses[:, :, :2] += 2  # the worst, which are drawn
    runs = bl.Results([result(names, seed=seed, losses=losses[seed]) for seed in range(3)])
    usual = bl.MORBiT(weighting=bl.weightings.Average())
    target = tmp_path_factory.mktemp("page") / "page.html"
    runs.report(target, against=result(names, seed=3, solver=usual))
    return target


@pytest.fixture(params=["desktop", "phone", "dark"])
def opened(request, browser, path):
    yield from _open(browser, path, request.param)


@pytest.fixture
def on_desktop(browser, path):
    yield from _open(browser, path, "desktop")


def _open(browser, path, kind):
    size = SIZES.get(kind, SIZES["desktop"])
    context = browser.new_context(viewport=size, color_scheme="dark" if kind == "dark" else "light")
    context.set_default_timeout(1000 * SECONDS)
    page, events = context.new_page(), []
    page.on("console", lambda message: events.append((message.type, message.text)))
    page.on("pageerror", lambda error: events.append(("error", str(error))))
    page.on("dialog", lambda dialog: (events.append(("dialog", dialog.message)), dialog.dismiss()))
    page.on("request", lambda sent: events.append(("request", sent.url)))
    page.goto(path.as_uri())
    page.wait_for_function(DRAWN)
    yield Opened(page, events)
    context.close()


def figure(page, title):
    return page.locator("figure").filter(has=page.get_by_text(f"{title}.", exact=True))


def test_no_error_and_no_request_but_for_the_page(opened, path):
    opened.page.mouse.move(300, 500)
    assert opened.events == [("request", path.as_uri())]


def test_charts_are_drawn_and_as_wide_as_the_page(opened):
    figures = opened.page.locator("figure")
    assert figures.count() == 5
    for one in map(figures.nth, range(5)):
        chart, svg = one.locator(".chart").bounding_box(), one.locator("svg").bounding_box()
        assert 0.9 * chart["width"] <= svg["width"] <= chart["width"] + 1
        assert svg["height"] > 150
    marks = figure(opened.page, "Worst and mean loss").locator("svg .mark-line path")
    assert marks.count() == 6  # three losses of two results
    assert all("L" in mark.get_attribute("d") for mark in marks.all())
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_legends_lie_inside_their_charts(opened):
    for one in opened.page.locator("figure").all():
        chart = one.locator("svg").bounding_box()
        texts = one.locator(".role-legend text").all()
        assert texts
        for box in (text.bounding_box() for text in texts):
            assert chart["x"] <= box["x"]
            assert box["x"] + box["width"] <= chart["x"] + chart["width"] + 1


def test_charts_have_the_colours_of_the_page(opened):
    """Those of the theme, also where it changes while the page is open."""
    line = figure(opened.page, "Worst and mean loss").locator("svg .mark-line path").first
    seen = {}
    for theme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=theme)
        seen[theme] = line.evaluate("mark => getComputedStyle(mark).stroke")
    assert seen == {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}


def test_the_pointer_shows_the_values_under_it(on_desktop):
    page = on_desktop.page
    chart = figure(page, "Worst and mean loss")
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + 103)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    place, first, *others = tooltip.inner_text().splitlines()
    assert 100 < int(place.removeprefix("step ")) < 200
    assert len(others) == 5
    name, value = first.split(": ")
    assert name == "worst, MORBiT (SimplexAscent)"
    assert (
        chart.locator("output").inner_text().startswith(f"{place}: MORBiT (SimplexAscent): worst = {float(value):.4g}")
    )


def test_a_name_in_a_tooltip_is_text(on_desktop):
    page = on_desktop.page
    chart = figure(page, "The worst tasks")
    [k] = [k for k, said in enumerate(_readouts(page, chart)) if said.startswith(HOSTILE[:8])]
    chart.locator("svg .mark-symbol.role-mark path").nth(k).hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert tooltip.inner_text().startswith(HOSTILE[:8])
    assert tooltip.locator("*").count() == 0
    assert not [event for event in on_desktop.events if event[0] != "request"]


def _readouts(page, chart):
    return chart.locator("script").evaluate("script => JSON.parse(script.textContent).readouts")


def test_everything_can_be_reached_by_the_keyboard(on_desktop):
    """Every slider, every table and what opens one has the focus in turn; arrows move a slider, which says where to."""
    page = on_desktop.page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate("[document.activeElement.tagName, document.activeElement.className]")
        if found[0] == "BODY":
            break
        reached.append(found[0])
        if found[0] == "INPUT" and reached.count("INPUT") == 3:
            page.keyboard.press("ArrowLeft")
        if found[0] == "SUMMARY" and reached.count("SUMMARY") == 1:
            page.keyboard.press("Enter")
    assert reached.count("INPUT") == 5
    assert reached.count("SUMMARY") == 4
    assert reached.count("DIV") == page.locator(".scroll").count() - 3  # of the four details one was opened
    chart = figure(page, "Worst and mean loss")
    said = _readouts(page, chart)[-2]
    assert chart.locator("output").inner_text() == chart.locator("input").get_attribute("aria-valuetext") == said
    assert page.locator("details[open] table").first.is_visible()


def test_a_printed_page_is_light_and_shows_its_tables(on_desktop):
    page = on_desktop.page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert all(table.bounding_box()["height"] > 50 for table in page.locator("table").all())
    assert not page.locator("input").first.is_visible()


def test_a_page_can_be_read_without_scripts(browser, path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri(), timeout=1000 * SECONDS)
    assert page.get_by_text("This chart needs JavaScript").first.is_visible()
    assert page.locator("table").last.is_visible()
    assert not page.locator("input").first.is_visible()
    context.close()
