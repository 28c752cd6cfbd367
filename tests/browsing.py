"""A real browser for tests of pages: a headless Chromium, driven by selenium."""

import shutil

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"

in_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="the page is looked at in a real browser: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium. `conftest` imports it for all tests."""
    driver = started(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


def started(folder):
    """A headless Chromium with its files in `folder`."""
    webdriver = pytest.importorskip("selenium.webdriver", reason='pip install -e ".[test]" brings selenium')
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), "disable-component-update", "disable-sync"]:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(DRIVER))


def look(browser, page, width=1280, height=800, theme="light", media="screen"):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(page.as_uri())


def press(browser, *keys, shift=False):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        actions = ActionChains(browser, duration=0)
        if shift:
            actions.key_down(Keys.SHIFT)
        actions.send_keys(getattr(Keys, key, key))
        if shift:
            actions.key_up(Keys.SHIFT)
        actions.perform()


def script(browser, expression):
    return browser.execute_script(f"return {expression}")


def brightness(browser):
    """The sums of red, green and blue of the page's text and of its background."""
    return [
        sum(script(browser, f"getComputedStyle(document.body).{what}.match(/\\d+/g).slice(0, 3).map(Number)"))
        for what in ("color", "backgroundColor")
    ]
