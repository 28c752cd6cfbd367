"""Look at the built site as a reader on a phone does: in a headless browser, 390 pixels wide, without a network.

`python .ci/site/look.py [FOLDER]` after `mkdocs build`. Every page is held against CHECKS; pictures of a few screens go to
FOLDER, for a person to look at. Says what is wrong and ends with 1; where there is no browser, says so and ends with 0.
"""

import base64
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[2] / "build/site"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
SHOWN = {  # screens to be looked at: a page, and what stands on top of the screen
    "index": "h1",
    "index-table": "table",
    "index-plot": "img",
    "tutorials/index": "h1",
    "tutorials/02_moments": "h1",
    "tutorials/02_moments-formula": ".formula",
    "tutorials/04_shuffles-picture": "img",
    "tutorials/07_backward-boxed": "menclose",
    "tutorials/08_columns-table": "div > table",
    "reference/normlab": "h1",
    "reference/normlab.stages-moments": "[id='normlab.stages.moments']",
}
CHECKS = {  # what a script finds on a page that should not be there: a list of what it is
    "is wider than the phone": """
        return document.documentElement.scrollWidth > innerWidth
            ? [...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > innerWidth)
                .map(e => e.outerHTML.slice(0, 80)) : []""",
    "has code that cannot be copied": """
        return [...document.querySelectorAll('.highlight:not(.no-copy) > pre')]
            .filter(e => !e.querySelector('button[data-md-type=copy], .md-clipboard'))
            .map(e => e.textContent.slice(0, 60))""",
    "has pictures with too few pixels": """
        return [...document.querySelectorAll('article img')]
            .filter(e => !e.naturalWidth || !/[.]svg$/.test(e.src) && e.naturalWidth < e.width * devicePixelRatio)
            .map(e => e.src)""",
    "has formulas as their source": r"""
        const text = document.createTreeWalker(document.querySelector('article'), NodeFilter.SHOW_TEXT), found = []
        while (text.nextNode())
            if (/\\frac|\$\$/.test(text.currentNode.data) && !text.currentNode.parentNode.closest('code'))
                found.push(text.currentNode.data)
        return found""",
    "asks the network": """
        return performance.getEntriesByType('resource').map(e => e.name).filter(name => !/^(file|data|blob):/.test(name))""",
}


def open_browser(folder: str) -> Any:
    """A headless browser as wide as a phone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), "host-resolver-rules=MAP * ~NOTFOUND", f"user-data-dir={folder}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    return browser


def faults(browser: Any, page: Path) -> Iterator[str]:
    """What is wrong with a page, a line each."""
    browser.get(page.as_uri())
    for what, script in CHECKS.items():
        found = browser.execute_script(script)
        if found:
            yield f"{page.relative_to(SITE)} {what}: {found[:3]}"
    for entry in browser.get_log("browser"):
        yield f"{page.relative_to(SITE)}: {entry['message']}"


def main() -> int:
    """Look at all pages; returns the process's exit status."""
    if not BROWSER or not DRIVER:
        print("not looked at: there is no chromium with a chromedriver here (apt-get install chromium chromium-driver)")
        return 0
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        browser = open_browser(folder)
        try:
            pages = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
            wrong = [line for page in pages for line in faults(browser, page)]
            for name, top in SHOWN.items() if pictures else ():
                browser.get((SITE / re.sub("-.*", ".html", name) if "-" in name else SITE / f"{name}.html").as_uri())
                browser.execute_script("scrollTo(0, document.querySelector(arguments[0]).getBoundingClientRect().top - 70)", f"article {top}")
                shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
                pictures.mkdir(parents=True, exist_ok=True)
                (pictures / f"{name.replace('/', '_')}.png").write_bytes(base64.b64decode(shot["data"]))
        finally:
            browser.quit()
    print("\n".join(wrong) or f"{len(pages)} pages looked at on a phone's width: all well")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
