"""One thread: the models of these tests are small (`normlab.studies.memory.threads`)."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(quick_collections):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
