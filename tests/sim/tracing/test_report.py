"""`Trace.save`: the page's text, and the page in a real browser."""

import importlib.util
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from browsing import brightness, in_browser, look, press, script
from numba import cuda, float32

from normlab.kernels.forward.step_3_apex import build
from normlab.sim.tracing import METRICS, trace
from normlab.sim.tracing.pictures.arrows import tree

NASTY = """
from numba import cuda, float32


@cuda.jit
def nasty(x, y):
    '''A "kernel" with </script><script>window.injected = 1</script> & <b>more</b>.'''
    buffer = cuda.shared.array((32, 32), float32)  # </style><!-- {{ 7 * 7 }} {% raw %} & " '
    i = cuda.threadIdx.x

    if i < 32 and "<i>" < "</i>":
        buffer[i, 0] = x[i]  # <img src=x onerror="window.injected = 1">
    cuda.syncthreads()
    y[i] = buffer[31 - i, 0]
"""


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((32, 32), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    for k in range(0, 32, 8):
        tile[i + k, j] = x[i + k, j]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        y[i + k, j] = tile[j, i + k]


def traced_transpose(**options):
    return trace(transpose, **options)[1, (32, 8)](np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32))


def traced_apex(n1, n2):
    x, ones = np.random.default_rng(0).normal(size=(n1, n2)).astype(np.float32), np.ones(n2, np.float32)
    statistics = np.zeros(n1, np.float32), np.zeros(n1, np.float32)
    return trace(build(float32))[(1, n1), (32, 4)](x, ones, ones, np.float32(1e-5), np.zeros_like(x), *statistics)


@pytest.fixture(scope="module")
def nasty_trace(tmp_path_factory):
    """Of a kernel whose source and path look like HTML."""
    path = tmp_path_factory.mktemp("report") / "<b> & 'c'" / 'a"b.py'
    path.parent.mkdir()
    path.write_text(NASTY)
    specification = importlib.util.spec_from_file_location("nasty_kernel", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return trace(module.nasty)[1, 32](np.ones(32, np.float32), np.zeros(32, np.float32))


class Text(HTMLParser):
    """The text, the tags and the attributes of a page, as a browser reads them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.codes, self.inside = [], [], 0
        self.attributes = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "code":
            self.inside += 1
            self.codes.append("")

    def handle_endtag(self, tag):
        self.inside -= tag == "code"

    def handle_data(self, data):
        if self.inside:
            self.codes[-1] += data


def embedded(html):
    """The data of the maps."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


# --- the text --------------------------------------------------------------------------------------------------------


def test_save_writes_the_page_and_returns_its_path(tmp_path):
    counted = traced_transpose()
    path = counted.save(str(tmp_path / "report.html"))
    assert path == tmp_path / "report.html"
    html = path.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    for name, value in counted.metrics.items():
        assert (f"<code>{name}</code>" in html) is bool(value)
        assert not value or METRICS[name].short in html


def test_save_says_what_is_wrong_with_a_path(tmp_path):
    counted = traced_transpose()
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere' to write 'report.html' into"):
        counted.save(tmp_path / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError, match=r"the report needs the name of a file, and '.*' is a folder"):
        counted.save(tmp_path)


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    html = traced_transpose().save(tmp_path / "report.html").read_text()
    assert re.findall(r"https?://[^\"']*", html) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in Text(html).attributes}
    assert set(re.findall(r"url\(([^)]*)\)", html)) == {"#absent"}
    assert "@import" not in html


def test_source_that_looks_like_html_is_shown_as_it_is(nasty_trace, tmp_path):
    html = nasty_trace.save(tmp_path / "report.html").read_text()
    page = Text(html)
    source = NASTY.strip("\n").split("\n")[3:]
    assert page.codes[: len(source)] == source
    assert page.tags.count("script") == 2
    assert "img" not in page.tags


def test_the_source_is_every_line_of_each_function_that_did_something(tmp_path):
    html = traced_apex(2, 64).save(tmp_path / "report.html").read_text()
    files = re.findall(r"<h2>(/.*)</h2>", html)
    assert [file.rsplit("/normlab/")[-1] for file in files] == [
        "kernels/forward/step_3_apex.py",  # the kernel first
        "stages/block.py",
        "stages/recompute.py",
        "stages/row.py",
        "stages/warp.py",
    ]
    codes = Text(html).codes
    for line in ("def forward_apex(x, weight, bias, eps, output, mean, invvar):", "def row_moments(x, row, buffer):"):
        assert line in codes
    assert "def row_mean_square(x, row, buffer):" not in codes


def test_a_kernel_without_memory_or_source_still_has_a_page(tmp_path):
    space = {}
    exec("def silent(x):\n    if x.shape[0] < 0:\n        x[0] = 1\n", space)
    html = trace(space["silent"])[1, 1](np.ones(1)).save(tmp_path / "report.html").read_text()
    assert "No thread gave a value to another" in html
    assert "No element of an array was accessed" in html
    assert embedded(html) == {"requests": [], "heats": [], "tree": None}


def test_a_kernel_that_does_nothing_says_so_instead_of_empty_tables():
    @cuda.jit
    def idle(x):
        i = cuda.grid(1)  # noqa: F841

    counted = trace(idle)[2, 32](np.ones(1))
    assert str(counted) == "idle[(2, 1, 1), (32, 1, 1)]\n\nno memory request, no synchronisation"
    assert "<p>no memory request, no synchronisation</p>" in counted._repr_html_()


def test_source_that_is_not_there_is_said_not_to_be(tmp_path):
    space = {}
    exec("def copy(x, y):\n    y[0] = x[0]\n", space)
    counted = trace(space["copy"])[1, 1](np.ones(1), np.ones(1))
    assert "2     (source not available)" in str(counted)
    assert repr(counted.by_line()[0]).startswith("<line 2: (source not available) (ld requests 1, ld sectors 1, ")
    html = counted.save(tmp_path / "report.html").read_text()
    assert "<h2>&lt;string&gt; (source not available)</h2>" in html
    assert "<pre><code>(source not available)</code></pre>" in html


def test_lines_of_a_notebook_s_cells_are_known_by_their_cells(tmp_path, monkeypatch):
    paths = {name: str(tmp_path / f"{number}.py") for number, name in enumerate(("device", "kernel"))}
    cells = {paths["kernel"]: ("Cell", "In[7]"), paths["device"]: ("Cell", "In[3]")}
    session = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: session))
    space = {"cuda": cuda}
    for name, source in (
        ("device", "@cuda.jit(device=True)\ndef get(x):\n    return x[0]\n"),
        ("kernel", "@cuda.jit\ndef kernel(x, y):\n    y[0] = get(x)\n"),
    ):
        Path(paths[name]).write_text(source)
        exec(compile(source, paths[name], "exec"), space)
    counted = trace(space["kernel"])[1, 1](np.ones(1), np.ones(1))
    first, second = str(counted).splitlines()[-2:]
    assert first.startswith("Cell In[7]:3  y[0] = get(x) ")  # the kernel's own, though its path sorts last
    assert second.startswith("Cell In[3]:3  return x[0] ")
    html = counted.save(tmp_path / "report.html").read_text()
    assert "<h2>Cell In[7]</h2>" in html
    assert "<h2>Cell In[3], line 3</h2>" in html


def test_two_traces_of_one_name_are_told_apart():
    counted = traced_transpose()
    comparison = counted.compare(counted)
    assert comparison.rows()[0] == ["metric", "transpose (1)", "transpose (2)", "second / first"]
    assert repr(comparison) == f"<Comparison of transpose (1) and transpose (2): {len(comparison.metrics)} metrics>"
    assert counted.compare(counted, labels=("plain", "padded")).rows()[0][1:3] == ["plain", "padded"]
    with pytest.raises(TypeError, match="labels takes two strings, one for each trace, not 'ab'"):
        counted.compare(counted, labels="ab")
    with pytest.raises(ValueError, match="the labels of two traces must differ, and both are 'a'"):
        counted.compare(counted, labels=("a", "a"))


def test_the_maps_are_those_of_the_requests(tmp_path):
    counted = traced_transpose()
    line = counted.first_line + 8
    data = embedded(counted.save(tmp_path / "report.html").read_text())
    column = next(one for one in data["requests"] if one["subject"].startswith(f"shared load of 'tile', line {line}"))
    assert column["numbers"] == "block (0, 0, 0), warp 0: 32 wavefronts, the fewest possible 1: 31 bank conflicts"
    assert {(lane, bank, turn) for lane, bank, _, turn, *_ in column["punches"]} == {(n, 0, n) for n in range(32)}
    row = next(one for one in data["requests"] if one["subject"].startswith("global load of 'x'"))
    assert row["sectors"] == [0, 1, 2, 3]
    assert len(row["pieces"]) == 32
    names = {
        "global array 'x', shape (32, 32)",
        "global array 'y', shape (32, 32)",
        "shared array 'tile', shape (32, 32)",
    }
    assert {heat["subject"] for heat in data["heats"]} == names
    assert all(cell == 1 for heat in data["heats"] for row in heat["cells"] for cell in row)
    assert len(data["tree"]["arrows"]) == len(tree(counted.flows).arrows)


def test_all_kept_requests_can_be_chosen(tmp_path):
    line = traced_transpose().first_line + 8
    html = traced_transpose(keep=line).save(tmp_path / "report.html").read_text()
    assert html.count("<option ") == 2 * 32  # the loads of tile and the stores of y: 8 warps, 4 each


def test_a_block_with_very_many_flows_shows_the_first(tmp_path):
    counted = traced_transpose()
    flow = counted.flows.flows[0]
    pairs = [(source, target) for source in range(100) for target in range(60) if source != target]
    counted.flows.flows = [
        flow._replace(source=source, target=target, start=step, end=step + 1)
        for step in (3, 4)
        for source, target in pairs
    ]
    seen = embedded(counted.save(tmp_path / "report.html").read_text())["tree"]
    assert len(seen["arrows"]) == 4000
    assert seen["numbers"].endswith("; drawn are the first 4,000 of 11,880 arrows")
    assert seen["steps"] == [0, 5]


def test_the_page_of_the_apex_kernel_is_small(tmp_path):
    assert traced_apex(16, 256).save(tmp_path / "report.html").stat().st_size < 500_000


def test_a_notebook_shows_short_heads_with_the_full_names_as_tooltips():
    counted = traced_transpose()
    html = counted._repr_html_()
    head = html[: html.index("</thead>")]
    sectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    assert f'title="{sectors}">ld sectors</th>' in head
    assert f">{sectors}</td>" in html[html.index("</thead>") :]
    for name in counted.metrics:
        assert (f">{name}</td>" in html) is bool(counted.metrics[name])
    assert "y[i + k, j] = tile[j, i + k]" in html
    assert sectors in counted.compare(counted)._repr_html_()


# --- the browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory, nasty_trace):
    folder = tmp_path_factory.mktemp("pages")
    return {
        "transpose": traced_transpose().save(folder / "transpose.html"),
        "apex": traced_apex(2, 300).save(folder / "apex.html"),
        "nasty": nasty_trace.save(folder / "nasty.html"),
    }


def marks(browser, selector):
    """How many marks of the maps in sight match."""
    return script(
        browser,
        f"[...document.querySelectorAll('.map svg[role=img] {selector}')].filter(e => e.checkVisibility()).length",
    )


def current(browser):
    """The number and text of the chosen line."""
    words = "document.querySelector('button.line[aria-current]')"
    return int(script(browser, f"{words}.querySelector('.n').textContent")), script(
        browser, f"{words}.querySelector('code').textContent.trim()"
    )


@in_browser
def test_the_page_opens_on_the_costliest_line_without_errors_or_network(browser, pages):
    look(browser, pages["transpose"])
    assert current(browser)[1] == "y[i + k, j] = tile[j, i + k]"
    assert marks(browser, "rect.contested") == 32
    assert marks(browser, "rect.used") == 32 + 4  # the lanes of the store to y, and all of them by sector
    assert script(browser, "performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


@in_browser
def test_a_report_can_be_read_with_keys_alone(browser, pages):
    look(browser, pages["transpose"])
    first = traced_transpose().first_line
    press(browser, "k")
    assert current(browser) == (first + 6, "cuda.syncthreads()")
    press(browser, "ARROW_UP")
    assert current(browser)[0] == first + 5
    press(browser, "k")
    assert current(browser)[0] == first + 5  # there is none above
    press(browser, "j", "ARROW_DOWN", "j")
    assert current(browser)[0] == first + 8
    press(browser, "HOME")
    assert current(browser)[0] == first + 5
    assert script(browser, "document.activeElement.matches('button.line[aria-current]')")
    assert script(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid"

    press(browser, "TAB")
    assert script(browser, "document.activeElement.id") == "tab-line"
    press(browser, "ARROW_RIGHT")
    assert script(browser, "document.activeElement.id") == "tab-launch"
    assert script(browser, "document.getElementById('launch').checkVisibility()")
    assert not script(browser, "document.getElementById('line').checkVisibility()")
    press(browser, "TAB", "TAB", "ENTER")
    assert script(browser, "document.querySelector('#launch details').open")  # a metric says what it means
    press(browser, "END")  # within the details it scrolls
    assert current(browser)[0] == first + 5
    press(browser, "j")
    assert current(browser)[0] == first + 6
    assert script(browser, "document.getElementById('line').checkVisibility()")
    press(browser, "2")
    press(browser, "SHIFT")
    script(browser, "document.querySelectorAll('button.line')[2].focus()")
    press(browser, "ENTER")
    assert current(browser)[0] == first + 8
    assert script(browser, "document.getElementById('line').checkVisibility()")

    press(browser, "?")
    assert script(browser, "document.getElementById('help').open")
    press(browser, "ESCAPE")
    assert not script(browser, "document.getElementById('help').open")


@in_browser
def test_arrays_and_threads_show_what_the_trace_counted(browser, pages):
    counted = traced_apex(2, 300)
    look(browser, pages["apex"])
    press(browser, "3")
    heats = embedded(pages["apex"].read_text())["heats"]
    assert marks(browser, ".hot") == sum(bool(cell) for heat in heats for row in heat["cells"] for cell in row)
    press(browser, "4")
    seen = tree(counted.flows)
    counts = [sum((arrow.by == "shuffle") is shuffle for arrow in seen.arrows) for shuffle in (True, False)]
    assert script(browser, "[...document.querySelectorAll('[data-arrows]')].map(e => +e.dataset.arrows)") == counts
    assert marks(browser, ".barrier") == len(seen.barriers)
    assert marks(browser, ".warp") == 3
    assert browser.get_log("browser") == []


@in_browser
def test_the_chosen_line_is_in_sight_and_indented(browser, pages):
    look(browser, pages["apex"], 800, 700)
    for key in ("j", "END", "k", "HOME"):
        press(browser, key)
        boxes = "[document.querySelector('button.line[aria-current]'), document.getElementById('source')]"
        line, source = script(browser, f"{boxes}.map(e => e.getBoundingClientRect().toJSON())")
        assert source["top"] <= line["top"] < line["bottom"] <= source["bottom"]
    assert script(browser, "getComputedStyle(document.querySelector('button.line code')).whiteSpace") == "pre"


@in_browser
def test_source_that_looks_like_html_does_nothing_in_a_browser(browser, pages):
    look(browser, pages["nasty"])
    shown = script(browser, "[...document.querySelectorAll('#source .line:not(.head) code')].map(e => e.textContent)")
    assert shown == NASTY.strip("\n").split("\n")[3:]
    assert script(browser, "window.injected === undefined")
    assert script(browser, "document.querySelector('#source h2').textContent").endswith("""/<b> & 'c'/a"b.py""")
    assert browser.get_log("browser") == []


@in_browser
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (800, 700)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_its_window_by_day_and_by_night(browser, pages, width, height, theme):
    look(browser, pages["apex"], width, height, theme)
    assert script(browser, "document.documentElement.scrollWidth <= innerWidth")
    assert script(browser, "document.documentElement.scrollHeight <= innerHeight")
    boxes = "['source', 'details'].map(id => document.getElementById(id).getBoundingClientRect().toJSON())"
    source, details = script(browser, boxes)
    assert min(source["width"], details["width"]) > 0.4 * width or source["width"] == details["width"] == width
    assert min(source["height"], details["height"]) > 0.3 * height
    picture = script(browser, "document.querySelector('.map svg[role=img]').getBoundingClientRect().toJSON()")
    assert details["left"] <= picture["left"]
    assert picture["right"] <= details["right"]
    light = brightness(browser)
    assert abs(light[0] - light[1]) > 450
    assert (light[0] < light[1]) is (theme == "light")


@in_browser
def test_the_table_of_a_notebook_is_no_wider_than_its_cell(browser, tmp_path):
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><body style='width: 880px; font-size: 12px'>{traced_apex(2, 300)._repr_html_()}")
    look(browser, page)
    assert script(browser, "[...document.querySelectorAll('table')].map(e => e.offsetWidth <= 880)") == [True, True]


@in_browser
def test_print_shows_every_line_and_map(browser, pages):
    look(browser, pages["transpose"], media="print")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    drawn = "[...document.querySelectorAll('.map svg[role=img]')].filter(e => e.checkVisibility()).length"
    assert script(browser, drawn) == script(browser, "document.querySelectorAll('.map').length") > 6
    assert script(browser, "[...document.querySelectorAll('article')].every(e => e.checkVisibility())")
    assert not script(browser, "document.querySelector('[role=tablist]').checkVisibility()")
