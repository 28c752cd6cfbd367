"""Programs in README and docs/ run, their links lead somewhere, and their numbers are those of the records."""

import re
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from normlab import oracle

mpl.use("Agg")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / ".ci/site"))
import readme  # noqa: E402
import tabulated  # noqa: E402

sys.path.remove(str(ROOT / ".ci/site"))

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in readme.pages()}
MARKDOWN = [page for page in PAGES if page.endswith(".md")]  # the other pages are tutorials, which compute numbers
README = PAGES["README.md"]
PROGRAMS = {
    f"{page} {number}": program
    for page, text in PAGES.items()
    if page in MARKDOWN  # a tutorial's programs are run by course.check, in its own test
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), start=1)
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


# ---- programs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a program of a page in an empty folder; return its names."""

    def result(name):
        monkeypatch.chdir(tmp_path)
        file = tmp_path / "program.py"
        file.write_text(PROGRAMS[name])
        return runpy.run_path(str(file))

    return result


CHECKED = {}


def checks(name):
    """Decorate a function that looks at a program's names, its folder and what it printed."""

    def keep(function):
        CHECKED[name] = function
        return function

    return keep


@checks("README.md 1")
def the_first_program_finds_the_race(names, folder, printed):
    assert "1 finding in kernel 'reverse'" in printed
    assert "put cuda.syncthreads() between them" in printed


@checks("README.md 2")
def the_second_program_replaces_a_norm(names, folder, printed):
    assert [type(layer).__module__ for layer in names["model"]][1] == "normlab.nn.modules"


@checks("docs/use/distributed.md 1")
def a_row_on_one_rank_is_normalised(names, folder, printed):
    want = oracle.layer_norm(names["x"].numpy(), 96).output
    np.testing.assert_allclose(names["y"].numpy(), want, rtol=1e-4, atol=1e-5)


@checks("docs/use/arrays.md 1")
def recomputed_and_exact_gradients_are_right(names, folder, printed):
    saved = (names["grad_input"], names["grad_weight"], names["grad_bias"])
    for one, other in zip(names["recomputed"], saved, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert names["kept"].values.shape == (8, 8)
    truth = oracle.layer_norm_backward(*(names[name] for name in ("grad_output", "x")), 768, names["weight"])
    np.testing.assert_allclose(names["exact"][0], truth.grad_input, atol=1e-5)


@checks("docs/use/arrays.md 2")
def the_family_has_a_mean_per_group_and_a_picture(names, folder, printed):
    assert names["mean"].shape == (4, 4)
    assert (folder / "index_sets.svg").stat().st_size > 10_000


@checks("docs/use/arrays.md 3")
def a_kernel_of_one_s_own_finds_the_variance(names, folder, printed):
    np.testing.assert_allclose(names["variance"], names["x"].var(axis=1, dtype=np.float64), rtol=1e-3)


@checks("docs/use/pytorch.md 1")
def a_model_s_norm_is_replaced_and_learns(names, folder, printed):
    assert [type(layer).__module__ for layer in names["model"]][1] == "normlab.nn.modules"
    assert names["norm"].weight.grad.isfinite().all()


@checks("docs/use/pytorch.md 2")
def apex_s_names_are_there(names, folder, printed):
    assert {names["FusedLayerNorm"].__module__, names["FusedRMSNorm"].__module__} == {"normlab.nn.modules"}


@checks("docs/use/pytorch.md 3")
def the_sum_of_both_results_has_one_gradient(names, folder, printed):
    assert (names["new_residual"] == names["x"] + names["residual"]).all()
    assert names["x"].grad.isfinite().all()
    assert names["norm"].weight.grad.isfinite().all()


@checks("docs/use/pytorch.md 4")
def the_query_s_part_of_the_fused_tensor_gets_a_gradient(names, folder, printed):
    assert names["output"].shape == (2, 8, 4, 64)
    assert names["fused"].grad[..., :256].abs().sum() > 0
    assert (names["fused"].grad[..., 256:] == 0).all()


@checks("docs/use/pytorch.md 6")
def the_layer_is_fused(names, folder, printed):
    assert re.search(r"^0 +Layer +fused: norm_1 and the stream past it, addition and norm_2$", printed, re.MULTILINE)


@checks("docs/use/pytorch.md 5")
def the_gated_norm_is_mamba_s_and_the_modulated_norm_is_dit_s(names, folder, printed):
    import torch

    x, gate, scale, shift = (names[name].detach() for name in ("x", "gate", "scale", "shift"))
    gated = x * torch.nn.functional.silu(gate)
    grads = torch.autograd.grad(names["output"].sum(), [names["scale"], names["shift"]])
    want = torch.nn.functional.layer_norm(x, (8,), eps=1e-6)
    torch.testing.assert_close(names["output"], want * (1 + scale[:, None]) + shift[:, None])
    torch.testing.assert_close(grads[0], want.sum(1))
    assert (grads[1] == 4).all()
    wide = gated.clone().requires_grad_()
    through = torch.autograd.grad(torch.nn.functional.rms_norm(wide, (8,), eps=1e-6).sum(), wide)[0]
    torch.testing.assert_close(names["x"].grad, through * torch.nn.functional.silu(gate), atol=1e-5, rtol=1e-4)


@checks("docs/see/trace.md 1")
def the_transpose_has_the_race_and_the_wavefronts_that_its_comments_say(names, folder, printed):
    (race,) = names["report"].findings
    assert (race.kind, race.first.line, race.second.line) == ("race", 11, 12)
    assert "no barrier between the write at line 11 and the read at line 12" in race.advice
    assert names["counted"].request(12, "ld").wavefronts == 32
    assert names["counted"].metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 1024
    assert (folder / "transpose.html").stat().st_size > 10_000


@checks("docs/see/simulator.md 1")
def one_launch_is_vectorised_and_the_other_is_left_to_the_scheduler(names, folder, printed):
    said = re.findall(r"# (the (?:vectorised|scheduler) .*)", PAGES["docs/see/simulator.md"])
    assert [line.replace(str(folder), "…") for line in printed.splitlines()] == said
    assert names["x"][0] == 2 + 32


@checks("docs/see/play.md 1")
def a_warp_waits_at_the_barrier_as_the_comment_says(names, folder, printed):
    np.testing.assert_array_equal(names["y"], names["x"][::-1])
    assert "0 13 32 [32, 0]\n1 13 32 [0, 0]\n" in printed
    assert "for the global memory of line 12, 800 cycles" in printed
    assert (folder / "reverse.html").stat().st_size > 10_000


@checks("docs/see/sanitize.md 1")
def the_sum_races_and_its_barrier_diverges(names, folder, printed):
    assert "race on shared partial[32]" in printed
    assert "barrier-divergence" in printed


@checks("docs/see/explain.md 1")
def explain_names_the_step(names, folder, printed):
    assert re.search(r"^step +\w+", printed, re.MULTILINE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_its_page_says(name, run, tmp_path, capsys):
    names = run(name)
    CHECKED[name](names, tmp_path, capsys.readouterr().out)


def test_the_readme_s_first_code_is_python_and_short():
    languages = re.findall(r"```(\w+)\n", README)
    assert languages[:2] == ["python", "bash"]
    assert len(PROGRAMS["README.md 1"].splitlines()) <= 20


# ---- size and links --------------------------------------------------------------------------------------------------


def test_the_readme_has_at_most_200_lines_and_1800_words():
    assert len(README.splitlines()) <= 200
    assert len(README.split()) <= 1800


def anchors(text):
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page, text):
    """Return the links of a page that lead to no file, or to no heading of that file."""
    found = []
    for path, anchor in LINK.findall(text):
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(f"{path}#{anchor}" if anchor else path)
    return found


def test_every_link_leads_to_a_file_and_a_heading():
    assert {page: found for page in MARKDOWN if (found := broken(page, PAGES[page]))} == {}


def test_a_link_to_nowhere_is_named():
    text = "[a](docs/use/pytorch.md) [b](docs/nothing.md) [c](docs/use/limits.md#the-exact-mode) [d](LICENSE#no)"
    assert broken("README.md", text) == ["docs/nothing.md", "LICENSE#no"]


def test_every_path_in_the_readme_is_a_link():
    prose = re.sub(r"```.*?```|\[[^\]]*\]\([^)]*\)", "", README, flags=re.DOTALL)
    paths = re.findall(r"`((?:normlab|tests|docs|tutorials)/[^`]*)`", prose)
    assert paths == []


def test_the_readme_s_picture_is_drawn_from_today_s_records(tmp_path):
    ladder = runpy.run_path(str(ROOT / "docs/ladder.py"))
    ladder["draw"](tmp_path / "ladder.svg")
    kept, drawn = (
        re.findall(r"<text[^>]*>([^<]+)", file.read_text())
        for file in (ROOT / "docs/ladder.svg", tmp_path / "ladder.svg")
    )
    assert kept == drawn
    assert all(name in drawn and f"{fraction:.2f}" in drawn for name, fraction, _ in ladder["bars"]())


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_every_table_and_quoted_number_is_what_the_records_and_the_ladders_make():
    for page, text in PAGES.items():
        assert [*readme.stale(text), *readme.unmade(text)] == [], page


def test_each_table_stands_on_one_page():
    names = [name for text in PAGES.values() for name in readme.BEGIN.findall(text)]
    assert sorted(names) == sorted(tabulated.PARTS)


def test_a_wrong_table_is_named_and_so_is_one_that_nothing_makes():
    page = PAGES["docs/see/simulator.md"]
    wrong = page.replace("| copy float16 | 128 | 256 |", "| copy float16 | 128 | 255 |")
    assert readme.stale(wrong) == ["counters"]
    assert readme.made(wrong) == page
    assert readme.unmade(f"{page}\n| a | 1 |\n") == ["| a | 1 |"]
    with pytest.raises(ValueError, match="one line <!-- counters: begin --> and below it one line"):
        readme.stale(page.replace("<!-- counters: end -->", ""))
    with pytest.raises(ValueError, match="no table 'counts'"):
        readme.stale(page.replace("counters:", "counts:"))


def test_a_wrong_quoted_number_is_named_with_the_right_one():
    quote = "<!--=places ahead-->91<!--=-->"
    assert quote in README
    wrong = README.replace(quote, quote.replace("91", "96"))
    assert readme.stale(wrong) == ["places ahead: 96, not 91"]
    assert readme.made(wrong) == README
    with pytest.raises(ValueError, match="no number 'places won'"):
        readme.stale(README.replace("places ahead", "places won"))


def test_no_line_begins_with_a_quoted_number_because_a_comment_there_ends_the_paragraph():
    assert re.findall(r"(?m)^(?:# )?\s*<!--=.*", "\n".join(PAGES.values())) == []


def test_no_decimal_number_is_quoted_without_its_record():
    assert {page: found for page in MARKDOWN if (found := unmarked(PAGES[page]))} == {}


def test_a_decimal_number_without_a_marker_is_found():
    assert unmarked("at <!--=places-->0.96<!--=--> of it, or 0.93 (`0.5`, Python 3.11, version 0.30.4)") == ["0.93"]


def unmarked(text):
    """Return the decimal numbers of a page's sentences that no marker takes from a record."""
    for name in readme.BEGIN.findall(text):
        before, _, after = readme.split(text, name)
        text = before + after
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|!\[[^\]]*\]", "", readme.QUOTE.sub("", text), flags=re.DOTALL)
    return re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?(?![\w.]*\.\d)", prose.replace("Python 3.11", ""))
