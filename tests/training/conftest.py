"""What training sets for the whole process is undone, so that other tests do not depend on the order."""

import pytest
import torch


@pytest.fixture(autouse=True)
def restored_process():
    threads = torch.get_num_threads()
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)
