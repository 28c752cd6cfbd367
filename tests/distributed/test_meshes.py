"""ShardedNorm, DTensors, meshes, subgroups and compiled code: one process's values, and no redistribution."""

import numpy as np
import pytest
from distributed import meshes
from torch.distributed.tensor import Replicate, Shard

from normlab import oracle


@pytest.mark.parametrize("kind", meshes.NORMS)
@pytest.mark.parametrize(("count", "hidden", "local"), [(2, 8, True), (2, 7, False), (3, 4, False), (4, 5, False)])
def test_tensor_parallel_models_are_one_process_s(ranks, kind, count, hidden, local):
    ranks(meshes.tensor_parallel, kind, hidden, local, ranks=count)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("mesh", "placements", "columns"), [
    ((2,), (Shard(2),), 8),
    ((3,), (Shard(-1),), 7),  # 3, 3 and 1
    ((4,), (Shard(2),), 3),  # a rank without a column
    ((2, 2), (Shard(0), Shard(2)), 6),
    ((2, 2), (Shard(2), Shard(1)), 6),
    ((2, 2), (Replicate(), Shard(2)), 6),
], ids=str)  # fmt: skip
def test_a_dtensor_keeps_its_placements_and_sends_statistics_alone(ranks, mesh, placements, columns, rms):
    sent = ranks(meshes.direct, (4, 6, columns), placements, rms, mesh, ranks=int(np.prod(mesh)))
    rows = 24 // (2 if len(mesh) == 2 and placements[0] != Replicate() else 1)
    assert sent == [[rows + 1, rows] if rms else [2 * rows + 1, 2 * rows]] * int(np.prod(mesh))


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("placements", [(Shard(1),), (Shard(0),), (Replicate(),)])
def test_sequence_parallel_rows_are_normalised_where_they_are(ranks, placements, rms):
    assert ranks(meshes.direct, (4, 6, 8), placements, rms, (2,), ranks=2) == [[], []]


def test_what_cannot_be_sharded_is_refused(ranks):
    for partial, group, linear, plane, others in ranks(meshes.refused, ranks=2):
        assert partial[0] == "ValueError"
        assert "redistribute x first" in partial[1]
        assert group == ("ValueError", "sharded_rms_norm(): a DTensor has its own mesh, so group must be None")
        text = "ShardedNorm is for LayerNorm and RMSNorm over one dimension, not for "
        assert linear == ("NotImplementedError", f"{text}Linear(in_features=2, out_features=2, bias=True)")
        assert plane[1].startswith(f"{text}LayerNorm((2, 2)")
        assert [kind for kind, _ in others] == ["NotImplementedError"] * 2
        assert others[0][1] == f"{text}RMSNorm((8,), eps=None, elementwise_affine=True, offset=1.0)"
        assert others[1][1].startswith(f"{text}AddRMSNorm((8,)")


@pytest.mark.parametrize(("rms", "mode"), [(False, False), (True, True), (False, "exact")])
def test_compiled_code_is_one_graph_with_one_collective_per_pass(ranks, rms, mode):
    for close, operators in ranks(meshes.compiled, rms, mode, ranks=2):
        assert close
        assert sum("all_gather" in one for one in operators) == 2


def test_compiled_code_takes_an_eps_that_changes(ranks):
    assert ranks(meshes.compiled_for_two_eps, ranks=2) == [[True] * 6] * 2


def test_a_compiled_sync_batch_norm_is_the_eager_one(ranks):
    assert ranks(meshes.compiled_batch_norm, ranks=2) == [True, True]


def test_subgroups_merge_their_own_ranks(ranks):
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    parts = ranks(meshes.of_subgroups, x, ranks=4)
    for pair, rows in enumerate(x):
        got = np.concatenate(parts[pair::2], axis=-1)
        np.testing.assert_allclose(got, oracle.layer_norm(rows, 8).output, rtol=1e-4, atol=1e-5)
