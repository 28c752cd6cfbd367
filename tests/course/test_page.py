"""The page of a class: what it shows, that it needs nothing else, and what a browser makes of it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from browsing import in_browser

from normlab.course import catalogue
from normlab.course.failure import Failure
from normlab.course.grading import Result
from normlab.course.overview import Student
from normlab.course.page import page
from normlab.course.ranking import Cost

NASTY = '<img src=x onerror="window.injected = 1"></script><script>window.injected = 1</script>&\''


def a_class(students):
    """Students whose names and messages look like HTML; every second one has solved the first exercise."""
    graded = []
    for place in range(students):
        results = []
        for number in catalogue.FILES:
            exercise = catalogue.exercise(number)
            solved = place % 2 == 0 and not results
            failure = None if solved else Failure("values", f"x[{NASTY}]: expected 1", 7, (f"in {NASTY}", "y" * 300))
            parts = {"right": 6, "budgets": 2} if solved else {"right": 0, "budgets": 0}
            cost = Cost(4, 0, 1, 2) if solved else None
            results.append(Result(number, exercise.name, exercise.title, parts, failure, cost=cost))
        graded.append(Student(f"{place} {NASTY} Zoë 李", results))
    return graded


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text, as a browser reads them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_names_and_messages_are_text_and_no_html():
    html = Tags(page(a_class(3), 0, ranked=True))
    assert [tag for tag, _ in html.tags].count("script") == 1
    assert not {"img", "iframe", "link", "object", "base"} & {tag for tag, _ in html.tags}
    assert not [name for _, attributes in html.tags for name in attributes if name.startswith("on")]
    assert html.text.count(f"0 {NASTY} Zoë 李") >= 4  # in the table, in who is where, in the ranking, among students
    assert f"x[{NASTY}]: expected 1" in html.text


def test_the_page_needs_nothing_but_itself():
    text = page(a_class(2), 0, ranked=True)
    targets = [value for _, found in Tags(text).tags for name, value in found.items() if name in ("src", "href")]
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert not re.search(r"https?:|url\(|@import", text)
    (script,) = re.findall(r"<script>(.*)</script>\n</body>", text, re.DOTALL)
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'", text)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed


def test_every_link_leads_to_a_part_of_the_page():
    for ranked in (False, True):
        tags = Tags(page(a_class(2), 0, ranked)).tags
        ids = [found["id"] for _, found in tags if "id" in found]
        assert len(ids) == len(set(ids))
        assert {found["href"][1:] for tag, found in tags if tag == "a"} <= set(ids)
        assert ("ranking" in ids) == ranked


def test_histograms_count_the_students():
    tags = Tags(page(a_class(5), 0, ranked=False)).tags
    said = [found["aria-label"] for tag, found in tags if found.get("class") == "histogram"]
    assert len(said) == 1 + len(catalogue.FILES)
    assert said[1] == "students: 3 solved, 0 costly, 2 wrong, 0 not begun, 0 missing"
    assert said[2] == "students: 0 solved, 0 costly, 5 wrong, 0 not begun, 0 missing"


@in_browser
def test_a_browser_runs_the_page_s_script_and_no_other(browser, tmp_path):
    file = tmp_path / "class.html"
    file.write_text(page(a_class(12), 0, ranked=True))
    for width in (1280, 390):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(file.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing sticks out
        browser.get("about:blank")
    browser.get(file.as_uri())
    assert browser.execute_script("return window.injected") is None
    browser.execute_script("document.querySelectorAll('.matrix a')[3].click()")
    browser.set_script_timeout(5)
    browser.execute_async_script("setTimeout(arguments[0], 100)")
    opened = "return [...document.querySelectorAll('details.student')].flatMap((one, i) => one.open ? [i] : [])"
    assert browser.execute_script(opened) == [3]
    assert browser.execute_script("return document.activeElement.parentElement.id") == "student-4"
    shown = """
        const find = document.getElementById('find');
        find.value = arguments[0];
        find.dispatchEvent(new Event('input'));
        return [...document.querySelectorAll('.matrix tbody tr')].filter(one => one.offsetHeight).length;
    """
    assert browser.execute_script(shown, "11 <IMG") == 1
    assert browser.execute_script(shown, "") == 12
    assert not browser.get_log("browser")
