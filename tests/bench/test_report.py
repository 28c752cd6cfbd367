"""Tables, Markdown, README and plot, all from records that no machine ever made."""

import re

import pytest
from bench.conftest import family_row
from rich.console import Console
from typer.testing import CliRunner

from normlab.bench import plots, records, tables
from normlab.bench.report import markdown, norm_grid
from normlab.cli import app
from normlab.measure import files, pictures


def printed(record, tmp_path, **options):
    with (tmp_path / "out.txt").open("w+") as file:
        tables.show(record, Console(file=file, **options))
        file.seek(0)
        return file.read()


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_norm_table_has_every_contender_the_best_peer_and_what_is_missing(norm_record, tmp_path):
    text = printed(norm_record, tmp_path, width=60)
    lines = [line.split() for line in text.splitlines()]
    assert "LayerNorm forward: fractions of the copy bandwidth" in text
    (first,) = (line for line in lines if line[:3] == ["bfloat16", "32768", "4096"] and "0.98" in line)
    assert first == ["bfloat16", "32768", "4096", "5369", "0.98", "0.50", "0.95", "compile", "102.0", "(101.0", "to", "103.0)", "1.03"]  # fmt: skip  # noqa: E501
    assert ["bfloat16", "2048", "65536", "5369", "0.91", "wrong", "0.50", "compile", "110.0", "(109.0", "to", "111.0)", "1.82"] in lines  # fmt: skip  # noqa: E501
    assert ["float32", "2048", "65536", "10737", "wrong", "0.67", "0.50", "torch"] in lines
    assert "absent: apex (no module)" in text
    assert "wrong: torch (output is off by 7 times its bound)" in text
    assert "NVIDIA H200, driver 580.159.04. By hand." in " ".join(text.split())
    assert all(line == line.rstrip() for line in text.splitlines()[:-3])


def test_no_column_is_cut_in_a_narrow_terminal_and_ascii_pipes_take_it(
    norm_record, ladder_record, host_record, tmp_path
):
    for record in (norm_record, ladder_record, host_record):
        narrow, wide = (printed(record, tmp_path, width=width) for width in (30, 300))
        assert "…" not in narrow
        for grid in tables.grids(record):
            for cell in (cell for row in [grid.head, *grid.rows] for cell in row):
                assert cell.isascii()
                assert cell in narrow
                assert cell in wide


def test_the_ladder_shows_the_registers_of_the_slowest_kernel(ladder_record, tmp_path):
    (grid,) = tables.grids(ladder_record)
    assert grid.title == "LayerNorm forward, 32768 x 4096 bfloat16: 536.9 MB by the model, copy 5369 GB/s"
    head = ["step", "us", "GB/s", "of copy", "slowest kernel", "registers", "shared bytes", "occupancy", "idea"]
    assert grid.head == head
    assert grid.rows == [
        ["naive", "wrong", "wrong", "wrong", "", "", "", "", "one thread a row"],
        ["two_kernels", "150.0", "3579", "0.67", "slow", "48", "512", "62%", "partial sums"],
    ]
    assert "wrong: naive (off by 2)" in printed(ladder_record, tmp_path, width=200)


def test_the_host_table_has_eager_graph_and_first_calls(host_record, tmp_path):
    calls, first = tables.grids(host_record)
    assert calls.rows == [
        ["LayerNorm", "forward", "normlab", "12.0", "2.50"],
        ["LayerNorm", "forward", "compile", "40.0", "-"],
        ["LayerNorm", "forward", "torch", "-", "-"],
    ]
    assert first.rows == [["normlab", "0.50", "0.25", "0.50", "0.10"]]
    host_record["rows"][0]["contenders"]["compile"]["no_graph"] = "RuntimeError: not while capturing"
    text = printed(host_record, tmp_path, width=200)
    assert "not in a graph: compile (RuntimeError: not while capturing)" in text
    assert "Not in a graph: compile (RuntimeError: not while capturing)." in markdown([host_record])
    assert "unable: torch (RuntimeError: no)" in text
    assert "unable: first call of torch (it said no)" in text


def test_markdown_has_normlab_and_the_best_peer_in_each_cell_and_says_where_it_comes_from(norm_record):
    text = markdown([norm_record])
    assert "| n2 | LayerNorm bfloat16 | LayerNorm float32 |\n| --: | --: | --: |" in text
    assert "| 4,096 | **0.98** / 0.95 compile | 0.97 / **0.99** compile |" in text
    assert "| 65,536 | **0.91** / 0.50 compile | wrong or unable / **0.67** torch |" in text
    assert "| 4,096 | **0.94** / 0.83 compile |" in text  # RMSNorm backward
    assert "From the saved output the backward takes 1.01 to 1.01 times as long." in text
    assert text.endswith(
        "`normlab bench norm --json x.json`, 2026-11-21, NVIDIA H200, driver 580.159.04, torch 2.11.0, triton 3.6.0, "
        "numba 0.68.0, numba-cuda 0.30.4; copy: 5,369 to 10,737 GB/s. Absent: apex (no module). Wrong: torch "
        "(output is off by 7 times its bound). Wrong: normlab (output is off by 7 times its bound).\n\nHow: By hand."
    )


def test_shapes_of_several_sizes_are_written_in_full_and_widths_of_one_size_alone(norm_record):
    for row in norm_record["rows"]:
        row["n1"] += row["n2"] == 4096  # rounded
    assert norm_grid([row for row in norm_record["rows"] if row["direction"] == "forward"], "forward").head[0] == "n2"
    norm_record["rows"][0]["n1"] = 16
    grid = norm_grid([row for row in norm_record["rows"] if row["direction"] == "forward"], "forward")
    assert grid.head[0] == "n1 × n2"
    assert [row[0] for row in grid.rows] == ["16 × 4,096", "32,769 × 4,096", "2,048 × 65,536"]
    assert grid.rows[0][2] == ""  # not measured in float32


def test_every_line_of_a_markdown_table_has_as_many_cells_as_its_head(norm_record, ladder_record, host_record):
    ladder_record["steps"][0]["summary"] = "a | b"
    text = markdown([norm_record, ladder_record, host_record])
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 5
    assert text.count("How: By hand.") == 1
    for block in blocks:
        assert len({len(cells(line)) for line in block.splitlines()}) == 1
    assert markdown([]) == ""


def test_the_family_has_a_line_for_each_problem_and_a_column_for_each_norm(family_record):
    text = markdown([family_record])
    assert "**The family's forward: fraction of the copy bandwidth (times torch's speed)**" in text
    assert (
        "| shape | dtype | layout | batch norm | group norm |\n| --- | --- | --- | --: | --: |\n"
        "| 8 × 64 × 224 × 224 | float32 | NCHW | 0.67 (**2.00×**) | wrong or unable |\n"
        "| 8 × 64 × 224 × 224 | bfloat16 | NHWC | 0.80 (0.80×) | 1.00 |\n"
    ) in text
    assert "| 8 × 64 × 224 × 224 | float32 | NCHW | 0.75 (**1.05×**) |" in text.partition("The family's backward")[2]
    assert "; copy: 1,028 to 2,055 GB/s." in text
    assert "Wrong: normlab (output is off by 7 times its bound)." in text


def test_of_a_family_problem_measured_again_the_last_row_counts(family_record):
    again = {**family_record, "date": "2099-01-01T00:00:00+00:00", "command": "normlab bench family --norm batch"}
    again["rows"] = [family_row("batch", "forward", "float32", "NCHW", normlab=100.0, torch=300.0)]
    for both in ([family_record, again], [again, family_record]):
        text = markdown(both)
        assert text.count("The family's forward") == 1
        assert "| 8 × 64 × 224 × 224 | float32 | NCHW | 1.00 (**3.00×**) | wrong or unable |" in text
        assert "normlab bench family --norm batch" in text


def test_products_of_several_sizes_share_a_table_where_they_share_a_gpu(product_records):
    text = markdown(product_records)
    assert (
        "**SGEMM on NVIDIA H200: TFLOP/s / of cuBLAS / of the multiply-adds' peak**\n\n"
        "| step | 4,096³ | 4,000 × 4,100 × 3,000 |\n| --- | --: | --: |\n"
        "| `naive` | 1.4 / 0.03 / 0.02 | wrong |\n"
        "| `padded` | 43.0 / 0.81 / 0.72 | unable |\n"
        "| `pipelined` | 55.0 / 1.04 / 0.92 | 49.2 / 0.90 / - |\n"
        "| cuBLAS | 52.9 / 1.00 / 0.88 | 54.7 / 1.00 / - |\n"
    ) in text
    assert text.count("driver 580.159.04") == 2
    product_records[1]["gpu"] = "NVIDIA T4"
    assert markdown(product_records).count("| cuBLAS |") == 2


def test_the_report_knows_records_of_every_kind_as_files(
    norm_record, sweep_record, ladder_record, family_record, product_records, host_record, tmp_path
):
    every = [norm_record, sweep_record, ladder_record, family_record, *product_records, host_record]
    assert [record["what"] for record in every if record is not product_records[1]] == list(records.KINDS)
    paths = [tmp_path / f"{position}.json" for position in range(len(every))]
    for record, path in zip(every, paths, strict=True):
        files.write(record, path)
    done = CliRunner().invoke(app, ["bench", "report", *map(str, paths), "--plot", str(tmp_path / "norm.png")])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == markdown(every)
    assert (tmp_path / "norm.png").stat().st_size > 5000


# ---- the plot -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", pictures.SUFFIXES)
def test_a_plot_is_drawn_the_same_every_time(suffix, norm_record, tmp_path):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        plots.draw([norm_record], path)
    if suffix != ".pdf":  # which has the time in it
        assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size > 5000


def test_the_plot_has_a_panel_for_each_norm_direction_and_dtype_and_every_contender(
    norm_record, ladder_record, tmp_path
):
    path = tmp_path / "norm.svg"
    norm_record["rows"].append({**norm_record["rows"][0], "n1": 1, "n2": 64})  # not as large as the rest
    plots.draw([ladder_record, norm_record], path)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
    for title in ("LayerNorm forward, bfloat16", "LayerNorm forward, float32", "RMSNorm backward, bfloat16"):
        assert title in words
    assert {"normlab", "normlab-me", "torch", "compile", "4,096", "65,536"} <= set(words)
    assert "64" not in words


def test_a_curve_has_a_gap_where_nothing_was_measured_and_none_where_another_record_has_others():
    from matplotlib.figure import Figure

    panel, rows = Figure().subplots(), [
        {"n2": 64, "contenders": {"normlab": {"of_copy": 0.9}, "torch": {"of_copy": 0.5}}},
        {"n2": 64, "contenders": {"normlab": {"of_copy": 0.9}, "quack": {"of_copy": 0.7}}},
        {"n2": 128, "contenders": {}},
        {"n2": 256, "contenders": {"normlab": {"of_copy": 0.9}, "torch": {"status": "wrong"}}},
    ]  # fmt: skip
    plots._panel(panel, rows, [64, 128, 256])
    curves = {line.get_label(): line.get_xydata().tolist() for line in panel.get_lines()}
    assert str(curves["normlab"]) == "[[0.0, 0.9], [0.0, 0.9], [1.0, nan], [2.0, 0.9]]"
    assert str(curves["torch"]) == "[[0.0, 0.5], [1.0, nan], [2.0, nan]]"
    assert str(curves["quack"]) == "[[0.0, 0.7], [1.0, nan]]"


def test_without_a_norm_record_or_with_another_suffix_there_is_no_plot(norm_record, ladder_record, tmp_path):
    with pytest.raises(ValueError, match="a plot needs a record of `normlab bench norm`"):
        plots.draw([ladder_record], tmp_path / "x.svg")
    with pytest.raises(ValueError, match=r"x\.txt: the name must end in \.svg, \.png, \.pdf"):
        plots.draw([norm_record], tmp_path / "x.txt")
