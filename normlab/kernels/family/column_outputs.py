"""Build the last kernels of `columns`, which compute the output or grad_input element by element."""

from functools import cache

from normlab.engine import commit_copies, cuda, grid_dependency_sync, store_vector_from, wait_copies
from normlab.kernels.family.column_vectors import (
    IN_FLIGHT,
    IN_FLIGHT_OF_TWO,
    RESIDENT,
    SLOTS,
    SLOTS_OF_TWO,
    THREADS,
    Pair,
    gradient_taker,
    next_slot,
    normaliser,
    parameters_loader,
    statistics_loader,
)
from normlab.stages.ahead import fetcher


@cuda.jit(device=True)
def share_of(x, row_blocks, turns, width):
    """Return (batch, first row, last row, channel) of a thread.

    Each block has the next `turns` rows for each of its threads.
    """
    # The first block takes the end of memory, which the previous kernel read last and L2 still holds.
    across, down = cuda.blockDim.x * width, cuda.blockDim.y
    number = cuda.gridDim.x - 1 - cuda.blockIdx.x
    stacks = (x.shape[2] + across - 1) // across
    bundle = number // stacks
    batch = bundle // row_blocks
    first = (bundle - batch * row_blocks) * turns * down + cuda.threadIdx.y
    last = first + min(turns - 1, (x.shape[1] - 1 - first) // down) * down
    return batch, first, last, (number - bundle * stacks) * across + cuda.threadIdx.x * width


@cache
def build_output(dtype, itemsize, width):
    """Return the kernel `family_column_output`.

    Block (across, down): `across` vectors of channels; `down` threads take the rows in turn, the last ones first.
    """
    step, size = THREADS * width, SLOTS * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    load_statistics, load_parameters, normalise = statistics_loader(width), parameters_loader(width), normaliser(width)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_output(x, mean, invvar, weight, bias, sets, row_blocks, turns, output):
        ring = cuda.shared.array(size, kind, alignment=16)
        values = cuda.local.array(width, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        batch, first, row, channel = share_of(x, row_blocks, turns, width)
        down = cuda.blockDim.y
        offset = (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2] and first < x.shape[1]:
            # Fetch the first rows before the previous kernel has ended: it does not write x.
            ahead = row
            for slot in range(IN_FLIGHT):
                if ahead >= first:
                    fetch(ring, slot * step + offset, x, (batch, ahead, channel))
                commit_copies()
                ahead -= down
            grid_dependency_sync()  # the previous kernel's statistics are there
            load_statistics(Pair(centers, scales), mean, invvar, batch, channel, x.shape[2], sets)
            load_parameters(weight, bias, gammas, betas, channel)

            # Row by row: fetch ahead, normalise, store.
            slot = 0
            free = IN_FLIGHT
            while row >= first:
                if ahead >= first:
                    fetch(ring, free * step + offset, x, (batch, ahead, channel))
                commit_copies()
                wait_copies(IN_FLIGHT)  # no barrier: each thread reads only its own copies
                take(values, ring, slot * step + offset, x)
                normalise(values, Pair(centers, scales), weight, bias, gammas, betas)
                store_vector_from(output, (batch, row, channel), values, 0, width)
                row -= down
                ahead -= down
                free = slot
                slot = next_slot(slot, 0, SLOTS)

    return family_column_output


@cache
def build_gradient(dtype, itemsize, width):
    """Return the kernel `family_column_gradient`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma.

    Its blocks are those of `build_output`.
    """
    step, size = THREADS * width, SLOTS_OF_TWO * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    load_statistics, load_parameters, take_gradient = (
        statistics_loader(width), parameters_loader(width), gradient_taker(width),
    )  # fmt: skip

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_gradient(
        grad_output, x, mean, invvar, weight, mean_g, mean_gx, sets, row_blocks, turns, grad_input
    ):
        grad_ring = cuda.shared.array(size, kind, alignment=16)
        ring = cuda.shared.array(size, kind, alignment=16)
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        firsts = cuda.local.array(width, dtype)
        seconds = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        if mean_g is None:  # the first kernel of its operation: another operation's kernel wrote dy
            grid_dependency_sync()
        batch, first, row, channel = share_of(x, row_blocks, turns, width)
        down = cuda.blockDim.y
        offset = (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2] and first < x.shape[1]:
            # Fetch the first rows before the previous kernel has ended: it writes neither x nor dy.
            ahead = row
            for slot in range(IN_FLIGHT_OF_TWO):
                if ahead >= first:
                    fetch(grad_ring, slot * step + offset, grad_output, (batch, ahead, channel))
                    if mean_g is not None:
                        fetch(ring, slot * step + offset, x, (batch, ahead, channel))
                commit_copies()
                ahead -= down
            grid_dependency_sync()  # the previous kernel's means are there
            load_statistics(Pair(centers, scales), mean, invvar, batch, channel, x.shape[2], sets)
            if mean_g is not None:
                load_statistics(Pair(firsts, seconds), mean_g, mean_gx, batch, channel, x.shape[2], sets)
            load_parameters(weight, None, gammas, None, channel)

            # Row by row: fetch ahead, compute, store.
            slot = 0
            free = IN_FLIGHT_OF_TWO
            while row >= first:
                if ahead >= first:
                    fetch(grad_ring, free * step + offset, grad_output, (batch, ahead, channel))
                    if mean_g is not None:
                        fetch(ring, free * step + offset, x, (batch, ahead, channel))
                commit_copies()
                wait_copies(IN_FLIGHT_OF_TWO)  # no barrier: each thread reads only its own copies
                take(grads, grad_ring, slot * step + offset, grad_output)
                if mean_g is not None:
                    take(values, ring, slot * step + offset, x)
                take_gradient(grads, values, Pair(centers, scales), Pair(firsts, seconds), weight, gammas, mean_g)
                store_vector_from(grad_input, (batch, row, channel), grads, 0, width)
                row -= down
                ahead -= down
                free = slot
                slot = next_slot(slot, 0, SLOTS_OF_TWO)

    return family_column_gradient
