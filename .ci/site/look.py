"""Look at the built site as a reader on a phone does: in a headless browser, 390 pixels wide, without a network.

`python .ci/site/look.py [FOLDER]` after `mkdocs build`. Every page is held against CHECKS, every tutorial against its
notebook; a button that copies is pressed, and something searched. Pictures of a few screens go to FOLDER, for a person
to look at. Says what is wrong and ends with 1; where there is no browser, says so and ends with 0.
"""

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
SCREENS = [  # to be looked at: a page, and what stands at the top of the screen
    ("index.html", "h1"),
    ("index.html", "table"),
    ("index.html", "img"),
    ("tutorials/index.html", "h1"),
    ("tutorials/02_moments.html", "h1"),
    ("tutorials/02_moments.html", ".formula"),
    ("tutorials/04_shuffles.html", "img"),
    ("tutorials/07_backward.html", "menclose"),
    ("tutorials/08_columns.html", "div > table"),
    ("reference/normlab.html", "[id='normlab.host.norms.layer_norm_forward']"),
    ("reference/normlab.kernels.forward.html", "[id='normlab.kernels.forward.step_3_apex']"),
]
CHECKS = {  # what should not be on a page, and a script that finds it
    "is wider than the phone": """
        const width = document.documentElement.clientWidth
        const held = e => !e.matches('article') && (getComputedStyle(e).overflowX == 'auto' || held(e.parentElement))
        const right = e => e.getBoundingClientRect().left + Math.max(e.offsetWidth || 0, e.scrollWidth)
        const spills = e => e.matches('p, li, h1, h2, h3, h4, img, table, math') && right(e) > width
        return [...document.querySelectorAll('article *')].filter(e => spills(e) && !held(e))
            .map(e => e.outerHTML.slice(0, 80))
            .concat(document.documentElement.scrollWidth > width ? ['the whole page'] : [])""",
    "has code that cannot be copied": """
        return [...document.querySelectorAll('.highlight:not(.no-copy)')]
            .filter(e => !e.querySelector('button[data-md-type=copy]')).map(e => e.textContent.slice(0, 60))""",
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
        return performance.getEntriesByType('resource').map(e => e.name)
            .filter(name => !/^(file|data|blob):/.test(name))""",
}
PARTS = """
    const count = selector => document.querySelectorAll('article ' + selector).length
    return {code: count('.language-python'), pictures: count('img'), answers: count('details > summary > b')}"""
CLIPBOARD = "setTimeout(() => navigator.clipboard.readText().then(arguments[0]), 300)"
SEARCH = """
    const [wanted, done] = arguments, query = document.querySelector('.md-search__input')
    document.querySelector('label[for=__search]').click()
    query.focus()
    query.value = wanted
    query.dispatchEvent(new Event('input', {bubbles: true}))
    query.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))
    let left = 50
    const look = () => {
        const found = document.querySelector('.md-search-result__item')
        found || !left-- ? done(found ? found.innerText : '') : setTimeout(look, 100)
    }
    look()"""


def open_browser(folder: str) -> Any:
    """A headless browser as wide as a phone; `folder`: an empty one, for its own files."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), "host-resolver-rules=MAP * ~NOTFOUND", f"user-data-dir={folder}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    return browser


def faults(browser: Any, page: Path) -> Iterator[str]:
    """What is wrong with a page, a line each."""
    browser.get(page.as_uri())
    for what, script in CHECKS.items():
        if found := browser.execute_script(script):
            yield f"{what}: {found[:3]}"
    for entry in browser.get_log("browser"):
        yield entry["message"]
    notebook = ROOT / "tutorials" / f"{page.stem}.ipynb"
    if notebook.exists() and (found := browser.execute_script(PARTS)) != (wanted := parts(notebook)):
        yield f"shows {found}, its notebook has {wanted}"


def parts(notebook: Path) -> dict[str, int]:
    """How much there is in a notebook. The cell that installs in Colab is left out."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return {
        "code": sum(cell["cell_type"] == "code" and "google.colab" not in "".join(cell["source"]) for cell in cells),
        "pictures": sum("image/svg+xml" in output.get("data", {}) for output in outputs),
        "answers": sum("".join(cell["source"]).count("<summary><b>") for cell in cells),
    }


def failures(browser: Any) -> Iterator[str]:
    """What does not work when a reader uses it: a button that copies, the search."""
    browser.get((SITE / "tutorials/02_moments.html").as_uri())
    code = browser.find_element("css selector", ".highlight:not(.no-copy)")
    code.find_element("css selector", "button").click()
    copied, shown = browser.execute_async_script(CLIPBOARD), code.text
    if copied.strip() != shown:
        yield f"copying gives {copied!r}, not {shown!r}"
    first = browser.execute_async_script(SEARCH, "welford_step")
    if "welford_step" not in first:
        yield f"searching welford_step gives {first!r}"


def photograph(browser: Any, folder: Path) -> None:
    """Write a picture of each of SCREENS to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (page, top) in enumerate(SCREENS, start=1):
        browser.get((SITE / page).as_uri())
        place = "scrollTo(0, document.querySelector(arguments[0]).getBoundingClientRect().top - 70)"
        browser.execute_script(place, f"article {top}")
        picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        (folder / f"{number:02}_{Path(page).stem}.png").write_bytes(base64.b64decode(picture["data"]))


def main() -> int:
    """Look at everything; returns the process's exit status."""
    if not BROWSER or not DRIVER:
        print("not looked at: there is no chromium with a chromedriver here (apt-get install chromium chromium-driver)")
        return 0
    pages = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
    if not pages:
        print(f"there are no pages in {SITE}: mkdocs build -f .ci/site/mkdocs.yml")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        browser = open_browser(folder)
        try:
            wrong = [f"{page.relative_to(SITE)}: {fault}" for page in pages for fault in faults(browser, page)]
            wrong = wrong or list(failures(browser))
            if len(sys.argv) > 1:
                photograph(browser, Path(sys.argv[1]))
        finally:
            browser.quit()
    print("\n".join(wrong) or f"{len(pages)} pages looked at on a phone's width: all well")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
