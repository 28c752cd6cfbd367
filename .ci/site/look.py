"""Look at the built site as readers do: in a headless browser, on a phone and on a desk, light and dark, offline.

`python .ci/site/look.py [FOLDER]` after `mkdocs build`. Every link has to lead somewhere; every page is held against
CHECKS and every tutorial against its notebook; SEARCHES are searched by keyboard, and a button that copies is pressed.
Pictures of a few screens go to FOLDER, for a person to look at. Says what is wrong and ends with 1; where there is no
browser, checks the links alone.
"""

import base64
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
SIZES = {
    "phone": {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    "desk": {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False},
}
SEARCHES = {  # what a reader types, and the page that has to come first
    "exercise": "learn/exercises/index.html",
    "race": "see/sanitize.html",
    "install": "use/install.html",
    "bank conflict": "learn/tutorials/05_block.html",
    "RMSNorm speed": "speed/h200.html",
    "glossary": "understand/glossary.html",
    "welford_step": "reference/normlab.stages.html",
}
SCREENS = [  # to be looked at: a page, by a pattern that only it has, and what stands at the top of the screen
    ("index.html", "h1"),
    ("index.html", "h2"),
    ("learn/index.html", "h2"),
    ("learn/tutorials/02_moments.html", "h1"),
    ("learn/tutorials/05_block.html", "#a-race"),
    ("learn/tutorials/08_columns.html", "div > table"),
    ("learn/tutorials/07_backward.html", "menclose"),
    ("learn/exercises/index.html", "h1"),
    ("learn/exercises/*_block_sum.html", "h1"),
    ("learn/exercises/*_block_sum.html", "h2"),
    ("speed/index.html", "h1"),
    ("speed/h200.html", "h1"),
    ("speed/h200.html", "table"),
    ("see/trace.html", "h1"),
    ("architecture.html", "img"),
    ("understand/glossary.html", "h1"),
    ("reference/normlab.host.html", "[id='normlab.host.norms.layer_norm_forward']"),
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
UNREADABLE = """
    const parts = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number)
    const linear = v => v <= 0.04 ? v / 12.9 : ((v + 0.055) / 1.055) ** 2.4
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255)
    const behind = e => {
        const [r, g, b, a = 1] = e ? parts(getComputedStyle(e).backgroundColor) : [255, 255, 255]
        return a > 0.5 ? [r, g, b] : behind(e.parentElement)
    }
    const contrast = e => {
        const both = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x)
        return (both[0] + 0.05) / (both[1] + 0.05)
    }
    const says = e => [...e.childNodes].some(node => node.nodeType == 3 && node.data.trim())
    return [...document.querySelectorAll('article :not(a.headerlink)')].filter(e => says(e) && e.checkVisibility())
        .filter(e => parts(getComputedStyle(e).color)[3] !== 0 && contrast(e) < 2.5)
        .map(e => e.outerHTML.slice(0, 90))"""
SCROLL = """
    const place = document.querySelector(arguments[0])
    const top = place && place.tagName != 'H1' ? scrollY + place.getBoundingClientRect().top - 120 : 0
    scrollTo({top, behavior: 'instant'})
    return !!place"""
FOUND = """
    const done = arguments[0]
    let left = 80
    const look = () => {
        const found = document.querySelector('.md-search-result__item a')
        found || !left-- ? done(found ? found.href : '') : setTimeout(look, 100)
    }
    setTimeout(look, 400)"""


class Addresses(HTMLParser):
    """What a page links to, and the names of its own places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's addresses and its id."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.targets.add(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken(pages: list[Path]) -> Iterator[str]:
    """Yield the links that lead to no file, or to no place in a page, and missing pictures; not links to the web."""
    read = {page: Addresses(page.read_text(encoding="utf-8")) for page in pages}
    for page, addresses in read.items():
        for target in sorted(addresses.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.is_file() or (file in read and unquote(parts.fragment) not in read[file].places):
                yield f"{page.relative_to(SITE)}: leads nowhere: {target}"


def open_browser(folder: str) -> Any:
    """Return a headless browser; `folder`: an empty one, for its own files."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), "host-resolver-rules=MAP * ~NOTFOUND", f"user-data-dir={folder}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    return browser


def become(browser: Any, size: str, scheme: str) -> None:
    """Let the browser be one of SIZES, for a reader who prefers "light" or "dark"."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZES[size])
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get((SITE / "index.html").as_uri())
    browser.execute_script("localStorage.clear()")  # where a page keeps the scheme that was chosen before
    browser.get((SITE / "index.html").as_uri())
    shown = browser.execute_script("return document.body.dataset.mdColorScheme")
    if shown != {"light": "default", "dark": "slate"}[scheme]:
        raise RuntimeError(f"a reader who prefers {scheme} sees the scheme {shown}")


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
    """How much there is in a notebook, with its solutions that unfold; without the cell that installs in Colab."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return {
        "code": sum(cell["cell_type"] == "code" and "google.colab" not in "".join(cell["source"]) for cell in cells)
        + sum(text.count("```python") for text in texts),
        "pictures": sum("image/svg+xml" in output.get("data", {}) for output in outputs),
        "answers": sum("".join(cell["source"]).count("<summary><b>") for cell in cells),
    }


def failures(browser: Any) -> Iterator[str]:
    """What does not work when a reader uses it: a button that copies, the keyboard, the search."""
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        browser.switch_to.active_element.send_keys(*keys)

    def focused(what: str) -> Any:
        return browser.execute_script(f"return document.activeElement.{what}")

    browser.get((SITE / "learn/tutorials/02_moments.html").as_uri())
    code = browser.find_element("css selector", ".highlight:not(.no-copy)")
    code.find_element("css selector", "button").click()
    copied, shown = browser.execute_async_script(CLIPBOARD), code.text
    if copied.strip() != shown:
        yield f"copying gives {copied!r}, not {shown!r}"
    become(browser, "desk", "light")
    browser.get((SITE / "index.html").as_uri())
    press(Keys.TAB)
    if "md-skip" not in focused("className"):
        yield f"the first tab does not lead to the link that skips the menu, but to {focused('outerHTML')[:80]}"
    for query, wanted in SEARCHES.items():
        browser.get((SITE / "index.html").as_uri())
        press("/")
        if "md-search__input" not in focused("className"):
            yield "the key / does not open the search"
        press(query)
        if not (first := browser.execute_async_script(FOUND)).split("#")[0].split("?")[0].endswith(wanted):
            yield f"searching {query!r} leads to {first or 'nothing'} first, not to {wanted}"
        press(Keys.ARROW_DOWN)
        if (chosen := focused("href")) != first:
            yield f"the arrow key leads to {chosen}, not to the first result {first}"


def photograph(browser: Any, folder: Path) -> Iterator[str]:
    """Write a picture of each of SCREENS, in both sizes, light and dark, to a folder; yield what is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        for scheme in ("light", "dark"):
            become(browser, size, scheme)
            for number, (pattern, top) in enumerate(SCREENS, start=1):
                (page,) = SITE.glob(pattern)
                browser.get(page.as_uri())
                if not browser.execute_script(SCROLL, f"article {top}"):
                    yield f"{pattern} has no {top} to be looked at"
                time.sleep(0.3)  # until the title bar has come to rest
                picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
                name = f"{number:02}_{page.stem}_{size}_{scheme}.png"
                (folder / name).write_bytes(base64.b64decode(picture["data"]))


def looked_at(pages: list[Path]) -> list[str]:
    """Return what is wrong with the pages in a browser; takes the pictures if they are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        browser = open_browser(folder)
        try:
            become(browser, "phone", "light")
            wrong = [f"{page.relative_to(SITE)}: {fault}" for page in pages for fault in faults(browser, page)]
            become(browser, "desk", "dark")
            for page in pages:
                browser.get(page.as_uri())
                if page.parent.name != "reference" and (found := browser.execute_script(UNREADABLE)):
                    wrong.append(f"{page.relative_to(SITE)}: cannot be read in the dark: {found[:3]}")
            become(browser, "phone", "light")
            wrong += failures(browser)
            if len(sys.argv) > 1:
                wrong += photograph(browser, Path(sys.argv[1]))
        finally:
            browser.quit()
    return wrong


def main() -> int:
    """Look at everything; returns the process's exit status."""
    pages = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
    if not pages:
        print(f"there are no pages in {SITE}: mkdocs build -f .ci/site/mkdocs.yml")
        return 1
    wrong = list(broken(pages))
    if BROWSER and DRIVER:
        wrong += looked_at(pages)
    else:
        print("only the links: no chromium with a chromedriver is here (apt-get install chromium chromium-driver)")
    print("\n".join(wrong) or f"{len(pages)} pages: all well")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
