"""What all tests of the swarm share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The networks are tiny, and a second thread on a busy machine is mostly waited for."""
    torch.set_num_threads(1)
