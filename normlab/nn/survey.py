"""Asking the GPU about the columns of many norms at once; the host waits for nothing.

Called by `normlab.nn.room`, behind an optimizer's step.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normlab import arguments, arrays
from normlab.arrays import FLOATS, dtype_name
from normlab.engine import DeviceArray, prepare
from normlab.kernels.exact.risk import smallest_weight
from normlab.kernels.exact.survey import launch_survey
from normlab.nn.shapes import Owners

COUNT = np.dtype(np.int64)


class Question(NamedTuple):
    """What is asked of one norm: where its parameters lie, and which of their columns are at risk.

    weight, bias: addresses, 0 if there is none. n2: columns. counts: the address of three int64 in pinned memory, which
    receive the answer. dtype: the parameters', by name. smallest: of `normlab.kernels.exact.risk`.
    """

    device: torch.device
    weight: int
    bias: int
    n2: int
    dtype: str
    smallest: Any
    counts: int


def question(parameters: Owners, dtype: torch.dtype, eps: float, counts: Tensor) -> Question:
    """About these parameters, one of which is there, in a norm of an input of this dtype."""
    first = next(one for one in parameters if one is not None)
    statistics = arguments.statistics_dtype(str(dtype).removeprefix("torch."))
    own = dtype_name(first)
    smallest = smallest_weight(arguments.rounded_eps(eps, statistics), own)
    weight, bias = (0 if one is None else one.data_ptr() for one in parameters)
    return Question(first.device, weight, bias, first.numel(), own, smallest, counts.data_ptr())


class Survey:
    """These questions, in one launch for all that are of one kind. It keeps neither parameters nor counts alive."""

    def __init__(self, questions: list[Question]):
        self.questions = questions
        kinds: dict[tuple, list[Question]] = {}
        for one in questions:
            kinds.setdefault((one.device, one.dtype, one.smallest, one.weight > 0, one.bias > 0), []).append(one)
        self._launches = [_Asking(alike) for alike in kinds.values()]

    def __call__(self, number: int) -> None:
        """Queue the questions, behind what is queued on torch's current streams; the answers come with this number."""
        for launch in self._launches:
            launch(number)


class _Asking:
    """Questions of one kind: parameters of one dtype on one GPU, and norms that have both of them or the same one."""

    def __init__(self, questions: list[Question]):
        first = questions[0]
        self._index = first.device.index or 0
        dtype = FLOATS[first.dtype]
        addresses = [address for one in questions for address in (one.weight, one.bias) if address]
        lowest, lowest_counts = min(addresses), min(one.counts for one in questions)
        rows = [
            [
                one.n2,
                *[(address - lowest) // dtype.itemsize for address in (one.weight, one.bias)],  # or not looked at
                (one.counts - lowest_counts) // COUNT.itemsize,
            ]
            for one in questions
        ]
        on_gpu = first.device.type == "cuda"  # from pinned memory, or the host would wait
        table = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=on_gpu)
        self._table = table.to(first.device, non_blocking=True)
        self._made = torch.cuda.current_stream(self._index).record_event() if on_gpu else None
        n2 = max(one.n2 for one in questions)
        parameters = self._stretch(lowest, max(addresses) + n2 * dtype.itemsize, dtype)
        counts = self._stretch(lowest_counts, max(one.counts for one in questions) + 3 * COUNT.itemsize, COUNT)
        self._stream = arrays.stream_getter()(self._index)
        self._launch = launch_survey(
            prepare,
            DeviceArray(self._table.data_ptr(), tuple(self._table.shape), COUNT, self._index, self._table),
            n2,
            parameters if first.weight else None,
            parameters if first.bias else None,
            first.smallest,
            counts,
            survey=0,
        )
        self._launch.patches = ((self._launch.words[-1], 0, 0),)  # which is its number

    def _stretch(self, first: int, end: int, dtype: np.dtype) -> DeviceArray:
        """Memory from one address to another as one array, whatever else lies between the parts that are read."""
        return DeviceArray(first, ((end - first) // dtype.itemsize,), dtype, self._index, None)

    def __call__(self, number: int) -> None:
        stream = arrays.stream_getter()(self._index)
        if stream != self._stream:  # on which the table is made, and its memory given back
            current = torch.cuda.current_stream(self._index)
            if self._made is not None:
                current.wait_event(self._made)
            self._table.record_stream(current)
        self._launch(stream, [number])
