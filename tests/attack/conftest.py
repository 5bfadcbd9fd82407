"""The fields on which attacks are tried: who hpcjet runs as, and how it isolates."""

import os
from collections.abc import Callable, Iterator

import pytest
from field import Field

FIELDS = {
    "ordinary-overlay": ("ordinary", "overlay"),
    "root-overlay": ("root", "overlay"),
    "ordinary-ready": ("ordinary", "ready"),
    "root-ready": ("root", "ready"),
    "ordinary-copy": ("ordinary", "copy"),
    "ordinary-userns": ("ordinary", "userns"),
    "ordinary-process": ("ordinary", "process"),
}


@pytest.fixture(scope="session")
def fields() -> Iterator[Callable[[str], Field]]:
    made: dict[str, Field] = {}

    def get(name: str) -> Field:
        mode, way = FIELDS[name]
        if mode == "root" and os.geteuid() != 0:
            pytest.skip("only root starts sandboxes as another user")
        if name not in made:
            made[name] = Field(mode, way)
        return made[name]

    yield get
    for field in made.values():
        field.close()


@pytest.fixture(scope="session", params=[name for name in FIELDS if name != "ordinary-process"])
def field(request: pytest.FixtureRequest, fields: Callable[[str], Field]) -> Field:
    return fields(request.param)


@pytest.fixture(scope="session")
def usual(fields: Callable[[str], Field]) -> Field:
    """The usual field alone, for rows that are the same on all."""
    return fields("ordinary-overlay")


@pytest.fixture(scope="session")
def processes(fields: Callable[[str], Field]) -> Field:
    """The weakest kind, for nodes without user namespaces."""
    return fields("ordinary-process")
