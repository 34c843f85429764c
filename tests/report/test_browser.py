"""The page in a real browser: nothing loads, nothing runs, all can be read and reached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
pytest.importorskip("axe_core_python", reason="axe-core-python carries the checks")

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not here"),
    # Selenium's own sockets are closed late.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(600)  # a busy machine must not fail a law
    yield driver
    driver.quit()


def opened(browser: Any, run: Path, scheme: str = "light", width: int = 1100) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get((run / "report.html").as_uri())


def test_it_loads_nothing_and_runs_nothing(browser: Any, hostile: Path) -> None:
    browser.get_log("performance")
    opened(browser, hostile)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked == {(hostile / "report.html").as_uri()}
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.querySelectorAll('img, h1 h1').length") == 0
    assert "alert(1)" in browser.find_element("tag name", "main").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, hostile: Path, scheme: str) -> None:
    """Contrast is among what axe looks at."""
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})  # the page forbids scripts
    try:
        opened(browser, hostile, scheme)
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        browser.execute_script((files("axe_core_python") / "axe.min.js").read_text())
        found = browser.execute_async_script("axe.run().then(arguments[0])")
    finally:
        browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    assert len(found["passes"]) > 20
    told = [(v["id"], v["impact"], [n["target"] for n in v["nodes"]]) for v in found["violations"]]
    assert told == []


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, hostile: Path) -> None:
    opened(browser, hostile, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_keyboard_reaches_links_tables_and_numbers(browser: Any, hostile: Path) -> None:
    opened(browser, hostile)
    count = browser.execute_script(
        "return document.querySelectorAll('a, summary, [tabindex=\"0\"]:not(details *)').length"
    )
    keys = browser.switch_to.active_element
    reached = []
    for _ in range(count):
        keys.send_keys("\ue004")  # Tab
        keys = browser.switch_to.active_element
        reached.append(keys.tag_name)
    assert {"a", "summary", "div"} <= set(reached)
    assert "body" not in reached
