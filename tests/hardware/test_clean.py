"""What is read out of what compute-sanitizer says, and that the shares of all steps are all of them."""

from hardware import all_steps, clean, norm_family, one_barrier_for_all
from normlab.kernels import Device


def test_a_clean_run_is_told_from_errors_and_from_a_run_that_ends_early():
    within = "12 results are within their bounds\n"
    zero = {"errors": 0, "checked": within.strip()}
    assert clean.verdict(within + "========= ERROR SUMMARY: 0 errors\n") == zero
    assert clean.verdict(within + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n") == zero
    assert clean.is_clean(zero)
    three = clean.verdict(within + "========= ERROR SUMMARY: 3 errors\n")
    assert three["errors"] == 3
    assert not clean.is_clean(three)
    for said in ("Traceback", "AssertionError: 12 results are within", "not done after 500 s"):
        found = clean.verdict(said)
        assert found["errors"] is None
        assert found["checked"].startswith("did not reach its end")
        assert not clean.is_clean(found)


def test_only_synccheck_and_only_norms_have_a_largest_cluster():
    assert clean.limited("all_steps 3 44", "synccheck") == "all_steps 3 44 8"
    assert clean.limited("all_steps 3 44", "memcheck") == "all_steps 3 44"
    assert clean.limited("norm_family 0 4", "synccheck") == "norm_family 0 4"


def test_the_control_computes_what_it_says(monkeypatch):
    monkeypatch.setattr(one_barrier_for_all, "BLOCKS", 16)
    monkeypatch.setattr(one_barrier_for_all, "TIMES", 1)
    assert one_barrier_for_all.check(16) == 1


def test_the_shares_are_all_problems(monkeypatch):
    seen = []
    monkeypatch.setattr(all_steps, "norm", lambda *one: seen.append(one) or 1)
    monkeypatch.setattr(all_steps, "surveys", lambda *one: seen.append(one) or 1)
    monkeypatch.setattr(all_steps, "products", lambda *size: seen.append(size) or 1)
    shares = clean.SHARES["all_steps"]
    counts = [all_steps.check(share, shares) for share in range(shares)]
    norms = [*all_steps.NORMS, *all_steps.one_of_each_variant(Device.named("h200"))]
    assert sum(counts) == len(seen) == len(norms) + len(all_steps.SURVEYS) + len(all_steps.PRODUCTS)
    assert set(seen) == {*norms, *all_steps.SURVEYS, *all_steps.PRODUCTS}


def test_norms_in_larger_clusters_than_asked_are_left_out():
    device = Device.named("h200")
    most, fewer = (all_steps.norms(device, cluster) for cluster in (16, 8))
    assert set(fewer) < set(most)
    clusters = {w.cluster for one in fewer for plan in all_steps.plans(*one[:3], device) for w in plan.work}
    assert clusters == {1, 2, 4, 8}


def test_the_drawn_problems_launch_every_kernel_of_the_last_steps():
    device = Device.named("h200")
    launched = {
        variant for one in all_steps.one_of_each_variant(device) for variant in all_steps.variants(*one[:3], device)
    }
    kernels = {variant[:2] for variant in launched}
    assert {file.removeprefix("normlab.kernels.") for file, _ in kernels} == {
        "forward.step_6_one_barrier",
        "forward.short_rows",
        "forward.clusters.kernel",
        "forward.split_rows",
        "backward.short_rows.kernel",
        "backward.pipelined.kernel",
        "backward.split_rows",
        "backward.final_sums",
    }
    # a tile per warp, and one that all warps of a block share
    assert {
        (rms, shared) for _, build, rms, *facts in launched for name, shared in facts if name == "warps_per_tile"
    } == {(rms, warps) for rms in (False, True) for warps in (1, 2)}


def test_the_shares_are_all_norms_of_the_family():
    shares = clean.SHARES["norm_family"]
    assert sum(len(norm_family.jobs()[share::shares]) for share in range(shares)) == len(norm_family.jobs()) > 0
