"""The page in a real browser: it draws, hovers, hides, zooms, switches; it needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import TOKENS, write_sweep

from zoo.report.report import report

pytestmark = pytest.mark.browser

DRIVER, BROWSER = Path("/usr/bin/chromedriver"), Path("/usr/bin/chromium")
OPTIONS = (
    "--headless=new --no-sandbox --disable-dev-shm-usage --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --window-size=1300,1000 "
    "--host-resolver-rules=MAP%*%~NOTFOUND"
)
GROUPS = "return document.getElementById(arguments[0]).data.map(t => [t.legendgroup, t.visible])"
DRAWN = "return [...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.trace'))"
LAYOUT = "return document.getElementById(arguments[0])._fullLayout.xaxis"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    finals = {"adamw": [3.0, 3.01, 2.99], "amos": [2.9, 2.92, 2.89], "<i>muon</i>": [3.0, 2.99, 3.03]}
    return report([write_sweep(folder / "sweep", finals)], folder / "report")[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a network; a machine without it leaves these tests out: -m 'not browser'."""
    from selenium import webdriver

    for file in (DRIVER, BROWSER):
        assert file.exists(), f"{file} is missing: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for option in OPTIONS.split():
        options.add_argument(option.replace("%", " "))
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page, freshly loaded; afterwards it must have asked for nothing and complained of nothing."""
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(page.as_uri())
    wait_for(browser, DRAWN)
    yield browser
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    within = ("file:", "data:", "blob:", "chrome:")  # the last: the browser's own tooltips, from itself
    assert [url for url in asked if not url.startswith(within)] == []
    assert browser.get_log("browser") == []


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def move(browser: Any) -> Any:
    from selenium.webdriver import ActionChains

    return ActionChains(browser, duration=50)


def wait_for(browser: Any, script: str, *arguments: Any) -> Any:
    """Until a script returns something true; the page reacts in its own time."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda b: b.execute_script(script, *arguments))


def double_click_until(browser: Any, element: Any, script: str, *arguments: Any) -> None:
    """Repeat a double click until a script returns something true.

    plotly.js ignores a double click whose two clicks are more than 300 ms apart, as on a busy machine.
    """
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    for _ in range(10):
        move(browser).double_click(element).perform()
        try:
            WebDriverWait(browser, 3).until(lambda b: b.execute_script(script, *arguments))
        except TimeoutException:
            continue
        return
    raise AssertionError(f"{script}: still false after 10 double clicks")


def test_every_plot_is_drawn(opened: Any) -> None:
    plots = opened.find_elements("css selector", ".plot")
    assert {plot.get_attribute("id") for plot in plots} == {
        f"plot-{key}" for key in ("verdict", "loss", "difference", "runs", "time", "memory")
    }
    assert all(plot.find_elements("css selector", ".scatterlayer .trace") for plot in plots)
    assert not find(opened, "figure img").is_displayed()
    assert "<i>muon</i>" in find(opened, "#table-verdict").text  # a name is no markup
    assert "<i>muon</i>" in find(opened, "#plot-loss .legend").text


def test_hovering_tells_the_value(opened: Any) -> None:
    point = opened.find_elements("css selector", "#plot-loss .scatterlayer .trace .point")[0]
    move(opened).move_to_element(point).perform()
    wait_for(opened, "return document.querySelector('#plot-loss .hoverlayer .hovertext')")
    told = find(opened, "#plot-loss .hoverlayer").text
    assert "5.7" in told  # of every variant: from 6 to about 3 in ten parts, after the first
    assert "at 10" in told


def test_a_legend_hides_a_variant_everywhere(opened: Any) -> None:
    from selenium.webdriver.common.by import By

    button = find(opened, "#table-verdict button[data-variant=amos]")
    assert button.get_attribute("aria-pressed") == "true"
    (item,) = (
        i for i in opened.find_elements(By.CSS_SELECTOR, "#plot-loss .legend .traces") if i.text == "amos"
    )
    item.find_element(By.CSS_SELECTOR, ".legendtoggle").click()
    hidden = "return arguments[0].every(id => document.getElementById(id).data.every("
    hidden += "t => (t.legendgroup === 'amos') === (t.visible === 'legendonly')))"
    wait_for(opened, hidden, ["plot-verdict", "plot-loss", "plot-difference", "plot-time"])
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    wait_for(opened, "return document.getElementById('plot-loss').data.every(t => t.visible === true)")


def test_a_run_is_hidden_by_itself(opened: Any) -> None:
    items = opened.find_elements("css selector", "#plot-runs .legend .traces")
    (item,) = (i for i in items if i.text == "amos-1")
    item.find_element("css selector", ".legendtoggle").click()
    gone = "return document.getElementById('plot-runs').data.filter(t => t.visible === 'legendonly').length"
    wait_for(opened, gone)
    traces = opened.execute_script(GROUPS, "plot-runs")
    assert [group for group, visible in traces if visible == "legendonly"] == ["run amos-1"]
    assert all(visible is True for _, visible in opened.execute_script(GROUPS, "plot-loss"))


def test_dragging_zooms_and_a_double_click_goes_back(opened: Any) -> None:
    area = find(opened, "#plot-loss .nsewdrag")
    before = opened.execute_script(LAYOUT + ".range", "plot-loss")
    move(opened).move_to_element(area).click_and_hold().move_by_offset(150, 60).release().perform()
    wait_for(opened, LAYOUT + ".autorange === false", "plot-loss")
    after = opened.execute_script(LAYOUT + ".range", "plot-loss")
    assert before[0] < after[0] < after[1] < before[1]
    find(opened, "#table-verdict button[data-variant=amos]").click()  # hiding keeps the zoom
    assert opened.execute_script(LAYOUT + ".range", "plot-loss") == after
    assert not opened.execute_script(LAYOUT + ".autorange", "plot-loss")
    double_click_until(opened, area, LAYOUT + ".autorange", "plot-loss")


def test_switching_the_axis_keeps_what_is_hidden(opened: Any) -> None:
    find(opened, "#table-verdict button[data-variant=amos]").click()
    tokens = find(opened, "#views-loss button[data-view='1']")
    assert tokens.text == "tokens"
    tokens.click()
    title = "return document.querySelector('#plot-loss .xtitle').textContent.includes('of other data')"
    wait_for(opened, title)
    last = "return document.getElementById('plot-loss').data.at(-1).x.at(-1)"
    assert opened.execute_script(last) == 100 * TOKENS
    assert tokens.get_attribute("aria-pressed") == "true"
    assert ["amos", "legendonly"] in opened.execute_script(GROUPS, "plot-loss")
    find(opened, "#views-loss button[data-view='3']").click()
    wait_for(opened, "return document.querySelector('#plot-loss .xtitle').textContent.includes('seconds')")
    assert opened.execute_script(last) == 50.0


def test_a_click_on_a_heading_sorts_by_numbers(opened: Any) -> None:
    """Once upwards, once downwards; by the value in full and not by its text."""
    heading = next(
        th for th in opened.find_elements("css selector", "#table-verdict th") if "final loss" in th.text
    )
    cells = "[...document.querySelectorAll('#table-verdict tbody tr')].map(r => r.cells[0].innerText.trim())"
    rows = f"return {cells}"
    assert opened.execute_script(rows) == ["adamw", "amos", "<i>muon</i>"]
    heading.find_element("css selector", "button").click()
    assert opened.execute_script(rows) == ["amos", "adamw", "<i>muon</i>"]  # 2.903, 3.000, 3.007
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.find_element("css selector", "button").click()
    assert opened.execute_script(rows) == ["<i>muon</i>", "adamw", "amos"]


def test_nothing_can_be_sent_away(opened: Any) -> None:
    """Plotly's own button for that is not there."""
    drawn = "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.modebar-btn'))"
    wait_for(opened, f"return {drawn}")  # Plotly adds the buttons after the traces
    titles = [b.get_attribute("data-title") for b in opened.find_elements("css selector", ".modebar-btn")]
    assert not [title for title in titles if "loud" in (title or "") or "hare" in (title or "")]


def test_paper_phone_and_the_dark(opened: Any) -> None:
    def emulate(**what: Any) -> None:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", what)

    colour = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#plot-loss .legendtext').style.fill"
    light = opened.execute_script(colour), opened.execute_script(ink)
    emulate(media="print")
    assert find(opened, "figure img").is_displayed()
    assert not find(opened, ".plot").is_displayed()
    emulate(media="screen", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    wait_for(opened, f"return ({ink[7:]}) !== arguments[0]", light[1])
    assert opened.execute_script(colour) != light[0]
    figures = opened.find_elements("css selector", "figure")
    drawn = [figure.find_element("css selector", ".svg-container") for figure in figures]
    bottoms = [[e.rect["y"] + e.rect["height"] for e in pair] for pair in zip(drawn, figures, strict=True)]
    assert all(plot < figure for plot, figure in bottoms)  # nothing lies over the next figure
    emulate()
    opened.set_window_size(420, 900)
    wait_for(opened, "return document.scrollingElement.scrollWidth <= window.innerWidth")
    opened.set_window_size(1300, 1000)


def test_the_policy_stops_what_was_put_into_the_page(browser: Any, page: Path, tmp_path: Path) -> None:
    """No script and no handler runs that is not zoo's own, wherever it stands."""
    hostile = "<script>document.title = 'script'</script>"
    hostile += "<img src='data:,' onerror=\"document.title = 'handler'\"><img src='file:///etc/hostname'>"
    copy = tmp_path / "report.html"
    copy.write_text(page.read_text("utf-8").replace("<nav ", f"{hostile}<nav "), encoding="utf-8")
    browser.get(copy.as_uri())
    assert browser.title not in ("script", "handler")
    assert browser.find_elements("css selector", "#plot-loss .scatterlayer .trace")
    refused = [e["message"] for e in browser.get_log("browser") if "Content Security Policy" in e["message"]]
    assert len(refused) == 3
