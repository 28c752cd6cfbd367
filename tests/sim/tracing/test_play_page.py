"""The page of `Trace.play`: its data, and the page in a real browser."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from browsing import brightness, in_browser, look, press, script
from numba import cuda, float32

from normlab.sim import trace
from normlab.sim.tracing.play.page import mask, plain, short


@cuda.jit
def sums(x, y):
    partial = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    lane, warp = i % 32, i // 32
    total = float32(0)
    for k in range(lane % 3):
        total += x[2 * i + k]
    offset = 16
    while offset > 0:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)
        offset //= 2
    if lane == 0:
        partial[warp] = total
    cuda.syncthreads()
    if lane < 4 and warp == 0:
        y[lane] = partial[3 - lane]
    if lane < 20:  # two groups meet, of which the second waits for lane 20
        total = cuda.shfl_sync(0xFFFF if lane < 16 else 0x1F0000, total, 0 if lane < 16 else 16)
    elif lane == 20:
        total = cuda.shfl_sync(0x1F0000, total, 16)


@cuda.jit
def long_loop(x, y):
    i = cuda.threadIdx.x
    total = x[i]
    for k in range(165):
        total += x[i] * (total - k)
        y[i] = total


@cuda.jit
def transposed(x, y):
    tile = cuda.shared.array((32, 32), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    for k in range(0, 32, 8):
        tile[i + k, j] = x[i + k, j]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        y[i + k, j] = tile[j, i + k]


def playback(watch=None):
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    return trace(sums, play=0, watch=watch)[1, 128](x, np.zeros(4, np.float32)).play()


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


# --- the data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([3, 3, 3, 3], 3),
        ([0.5], 0.5),
        ([4, 8, 12, 16], [4, 4]),
        ([4, 8], [4, 8]),
        ([4, 3, 2], [4, -1]),
        ([4, 3, 1], [4, 3, 1]),
        ([1.5, 2.5, 3.5], [1.5, 2.5, 3.5]),
        ([1, True, 1], [1, True, 1]),
        ([None, 1, 2], [None, 1, 2]),
    ],
)
def test_lists_of_values_are_short_where_they_can_be(values, written):
    assert json.dumps(short(values)) == json.dumps(written)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1 / 3, 0.33333),
        (2.0, 2),
        (1e300, 1e300),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (True, True),
        (None, None),
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values_are_such_as_json_holds(value, written):
    assert plain(value) == written
    assert type(plain(value)) is type(written)


def test_the_page_of_256_threads_and_500_steps_is_below_2_megabytes(tmp_path):
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    played = trace(long_loop, play=0)[1, 256](x, np.zeros(256, np.float32)).play()
    assert len(played.recording.steps) == 8 * (2 + 3 * 165 + 1)
    page = played.save(tmp_path / "page.html")
    assert 500_000 < page.stat().st_size < 2_000_000
    assert len(played._repr_html_()) < 2_000_000


def test_save_returns_the_path_and_a_notebook_has_the_same_page_in_a_frame(tmp_path):
    played = playback()
    path = played.save(str(tmp_path / "page.html"))
    assert path == tmp_path / "page.html"
    html = played._repr_html_()
    assert "\n" not in html
    assert 'sandbox="allow-scripts"' in html
    assert repr(played) == f"<Playback of sums, block (0, 0, 0): {len(played.recording.steps)} steps>"
    with pytest.raises(IsADirectoryError):
        played.save(tmp_path)


# --- the browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play")
    x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    played = {"sums": playback(), "transposed": trace(transposed, play=0)[1, (32, 8)](x, y).play()}
    return {name: SimpleNamespace(played=one, path=one.save(folder / f"{name}.html")) for name, one in played.items()}


def step(browser):
    return int(script(browser, "document.getElementById('slider').value"))


def lanes(browser, warp, kind):
    """The lanes of a warp that are drawn so."""
    cells = f"[...document.querySelectorAll('#warp-{warp} .lane')]"
    return script(browser, f"{cells}.flatMap((cell, lane) => cell.classList.contains('{kind}') ? [lane] : [])")


PICTURES = "document.querySelectorAll('#requests svg').length"


def boxes_of(*selectors):
    """JavaScript for where the elements are that are found by each of the selectors."""
    boxes = "[...document.querySelectorAll(one)].map(e => e.getBoundingClientRect().toJSON())"
    return f"{[*selectors]}.flatMap(one => {boxes})"


def at_every(turn, browser, expression):
    """What JavaScript gives at every 7th step, say: by one request, of which each takes as long as a step."""
    steps = f"data.steps.map((_, number) => number).filter(number => number % {turn} === 0)"
    return browser.execute_script(f"return {steps}.map(number => {{ show(number); return {expression}; }})")


@in_browser
def test_the_page_plays_what_was_recorded(browser, pages):
    recording = pages["sums"].played.recording
    look(browser, pages["sums"].path)
    warps = (
        "state.warps.map(warp => [warp.row, warp.active, warp.returned,"
        " [...warp.waits.values()].reduce((all, one) => all + one, 0)])"
    )
    values = "state.warps.map(warp => Object.fromEntries(data.variables.map((name, n) => [name, warp.values[n]])))"
    found = browser.execute_script(
        f"return data.steps.map((_, n) => {{ show(n); return structuredClone([{warps}, {values}]); }})"
    )
    numbers = script(browser, "data.lines")
    assert len(found) == len(recording.steps) > 100
    for number, (one, (standing, seen)) in enumerate(zip(recording.steps, found, strict=True)):
        expected = [
            [here.line and here.line.number, mask(here.active), mask(here.returned), mask(here.waiting)]
            for here in one.standing
        ]
        assert [[numbers.get(str(row)), *masks] for row, *masks in standing] == expected
        held = recording.values(number, one.warp)
        for name, by_lane in seen[one.warp].items():
            assert {lane: value for lane, value in enumerate(by_lane) if value is not None} == {
                lane: plain(value) for lane, value in held[name].items()
            }
    assert script(browser, "performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


@in_browser
def test_keys_move_through_the_steps(browser, pages):
    look(browser, pages["sums"].path)
    last = len(pages["sums"].played.recording.steps) - 1
    assert step(browser) == 0
    press(browser, "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_LEFT")
    assert step(browser) == 2
    press(browser, "ARROW_RIGHT", shift=True)
    assert step(browser) == 12
    press(browser, "ARROW_LEFT", "ARROW_LEFT", shift=True)
    assert step(browser) == 0
    press(browser, "END")
    assert step(browser) == last
    press(browser, "ARROW_RIGHT")
    assert step(browser) == last
    press(browser, "HOME")
    assert step(browser) == 0
    browser.execute_script("document.getElementById('slider').focus()")
    press(browser, "ARROW_RIGHT")  # the slider's own key, and the page's: one step and not two
    assert step(browser) == 1
    press(browser, "TAB")
    assert script(browser, "document.activeElement.id") == "follow"


@in_browser
def test_space_plays_to_the_end_and_stops(browser, pages):
    look(browser, pages["sums"].path)
    pressed = "document.getElementById('run').getAttribute('aria-pressed')"
    browser.execute_script(f"show({len(pages['sums'].played.recording.steps) - 3})")
    press(browser, " ")
    assert script(browser, pressed) == "true"
    wait = "const [done] = arguments, look = () => timer === null ? done(state.step) : setTimeout(look, 20); look()"
    assert browser.execute_async_script(wait) == len(pages["sums"].played.recording.steps) - 1
    assert script(browser, pressed) == "false"
    press(browser, "HOME", " ", " ")
    assert script(browser, pressed) == "false"


@in_browser
def test_a_followed_warp_is_stepped_alone(browser, pages):
    recording = pages["sums"].played.recording
    look(browser, pages["sums"].path)
    press(browser, "ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN")  # warp 2
    assert script(browser, "document.getElementById('whose').textContent") == "of warp 2, after the step"
    press(browser, *["ARROW_RIGHT"] * 3)
    own = [number for number, one in enumerate(recording.steps) if one.warp == 2]
    assert step(browser) == own[2]
    press(browser, "ARROW_UP", "ARROW_UP", "ARROW_UP", "ARROW_RIGHT")
    assert step(browser) == own[2] + 1


@in_browser
def test_the_slider_says_what_is_seen(browser, pages):
    recording = pages["sums"].played.recording
    look(browser, pages["sums"].path)
    number = next(n for n, one in enumerate(recording.steps) if "total += x" in one.line.text and one.warp == 1)
    browser.execute_script(f"show({number})")
    slider = "document.getElementById('slider')"
    one = recording.steps[number]
    assert script(browser, f"[{slider}.getAttribute('role'), {slider}.getAttribute('aria-label')]") == [
        "slider",
        "Step",
    ]
    assert script(browser, f"{slider}.getAttribute('aria-valuetext')") == (
        f"Step {number + 1} of {len(recording.steps)}: warp 1, line {one.line.number}, "
        f"{len(one.lanes)} lanes: total += x[2 * i + k]"
    )
    names = "[...document.querySelectorAll('button, input, select, [role=img]')].filter(e => !(e.labels?.length) && "
    assert script(browser, f"{names}!e.getAttribute('aria-label') && !e.closest('label')).length") == 0


@in_browser
def test_lanes_barrier_and_source_show_where_each_warp_is(browser, pages):
    recording = pages["sums"].played.recording
    look(browser, pages["sums"].path)
    at_barrier = [n for n, one in enumerate(recording.steps) if "syncthreads" in one.line.text]
    browser.execute_script(f"show({at_barrier[1]})")
    assert [len(lanes(browser, warp, "waiting")) for warp in range(4)] == [32, 32, 0, 0]
    says = "document.querySelector('#meetings').textContent"
    assert script(browser, says) == "syncthreads: 64 of 128 threads have arrived."
    shares = "[...document.querySelectorAll('.there span')].map(cell => cell.style.getPropertyValue('--share'))"
    assert script(browser, shares) == ["1", "1", "0", "0"]
    marked = "document.querySelector('.line.current').textContent"
    assert script(browser, marked) == f"{recording.steps[at_barrier[1]].line.number}w0,1    cuda.syncthreads()"
    browser.execute_script(f"show({at_barrier[3]})")
    assert [len(lanes(browser, warp, "waiting")) for warp in range(4)] == [0, 0, 0, 0]
    assert script(browser, says) == "syncthreads: all 128 threads have arrived, and go on."
    turn = next(n for n, one in enumerate(recording.steps) if "total += x" in one.line.text)
    browser.execute_script(f"show({turn})")
    assert tuple(lanes(browser, 0, "active")) == recording.steps[turn].lanes
    press(browser, "END")
    assert [len(lanes(browser, warp, "returned")) for warp in (1, 2, 3)] == [32, 32, 32]


@in_browser
def test_requests_are_drawn_by_sector_and_by_bank(browser, pages):
    recording = pages["transposed"].played.recording
    look(browser, pages["transposed"].path)
    first = next(n for n, one in enumerate(recording.steps) if "tile[i + k, j] = x" in one.line.text)
    last = next(n for n, one in enumerate(recording.steps) if "= tile[j" in one.line.text)
    browser.execute_script(f"show({first})")
    subjects = "[...document.querySelectorAll('#requests p')].map(e => e.textContent)"
    assert script(browser, subjects) == [
        "global load of x, 32 lanes of 4 bytes: 4 sectors",
        "shared store of tile, 32 lanes of 4 bytes: 1 wavefront",
    ]
    sectors = "[...document.querySelectorAll('#requests svg')[0].querySelectorAll('text')].map(e => e.textContent)"
    assert script(browser, sectors) == ["0", "1", "2", "3"]
    drawn = "['moved', 'used', 'clash'].map(kind => document.querySelectorAll(`#requests .${kind}`).length)"
    assert script(browser, drawn) == [4, 32 + 32, 0]
    browser.execute_script(f"show({last})")
    assert script(browser, subjects)[0] == "shared load of tile, 32 lanes of 4 bytes: 32 wavefronts"
    assert script(browser, drawn) == [4, 1 + 32, 31]


@in_browser
def test_the_table_has_the_values_of_a_lane(browser, pages):
    recording = pages["sums"].played.recording
    look(browser, pages["sums"].path)
    press(browser, "END", "ARROW_DOWN", "ARROW_DOWN", ",", ",", ".")
    rows = "[...document.querySelectorAll('#variables tbody tr')]"
    rows += ".map(row => [row.cells[0], row.cells[3]].map(cell => cell.textContent))"
    found = dict(script(browser, rows))
    held = recording.values(len(recording.steps) - 1, 1)
    assert found["lane"] == "31"
    assert found["total"] == str(plain(held["total"][31]))
    assert found["k"] == "0" == str(held["k"][31])
    browser.execute_script("document.querySelector('#variables .strip').children[5].click()")
    assert dict(script(browser, rows))["i"] == "37"


@in_browser
def test_the_latency_view_draws_as_many_warps_as_are_asked_for(browser, pages):
    latency = pages["sums"].played.latency()
    look(browser, pages["sums"].path)
    assert script(browser, "document.querySelectorAll('#schedule text[text-anchor=end]').length") == 4
    browser.execute_script("document.getElementById('many').focus()")
    before = step(browser)
    press(browser, "ARROW_LEFT")
    assert step(browser) == before
    assert script(browser, "document.querySelectorAll('#schedule text[text-anchor=end]').length") == 3
    assert script(browser, "document.querySelectorAll('#schedule rect.issues').length") == 3 * len(latency.instructions)
    cycles = latency.schedules[2].cycles
    assert script(browser, "document.getElementById('busy').textContent").startswith(f"3 warps: {cycles} cycles, ")
    assert str(latency) in script(browser, "document.getElementById('latency').textContent")


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_its_window_by_day_and_by_night(browser, pages, width, theme):
    boxes = boxes_of("#warps", "#requests svg", "#variables", "#schedule svg", "header button")
    for page in pages.values():
        look(browser, page.path, width, 800, theme)
        drawn = 0
        seen = f"[document.documentElement.scrollWidth <= innerWidth, {boxes}, {PICTURES}]"
        for fits, found, pictures in at_every(7, browser, seen):
            assert fits
            for box in found:
                assert 0 <= box["left"] < box["right"] <= width
            drawn += pictures
        assert drawn > 1
        light = brightness(browser)
        assert abs(light[0] - light[1]) > 450
        assert (light[0] < light[1]) is (theme == "light")


@in_browser
def test_the_current_line_is_in_sight(browser, pages):
    look(browser, pages["sums"].path, 390, 600)
    for line, source in at_every(5, browser, boxes_of(".line.current", "#source")):
        assert source["top"] <= line["top"] < line["bottom"] <= source["bottom"]


@in_browser
def test_a_notebook_s_frame_plays_and_takes_keys(browser, pages, tmp_path):
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><body>{pages['sums'].played._repr_html_()}")
    look(browser, page)
    browser.switch_to.frame(0)
    browser.find_element("id", "slider").send_keys("")
    press(browser, "ARROW_RIGHT", "ARROW_RIGHT")
    assert step(browser) == 2
    assert script(browser, "document.querySelector('.line.current code').textContent.trim().length") > 0
    browser.switch_to.default_content()
