"""Which replicas the router is told of; router, members and weights are stand-ins. tests/engine has a real router."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcjet.config.engine import VllmConfig
from hpcjet.engine.routing import Routing

URL = "http://n1:8000"


class StubRouter:
    """Does what a test asks while it takes a replica."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.meanwhile = lambda: None

    def add(self, url: str, *, deadline: float) -> None:
        self.meanwhile()
        self.known.append(url)

    def remove(self, url: str) -> None:
        if url in self.known:
            self.known.remove(url)


@pytest.fixture
def member() -> Any:
    return SimpleNamespace(url=URL, serves=True, life=0, nodes=("a",), state=SimpleNamespace(value="ready"), reason="")


@pytest.fixture
def router() -> StubRouter:
    return StubRouter()


@pytest.fixture
def routing(member: Any, router: StubRouter) -> Routing:
    members = SimpleNamespace(replicas={0: member}, ends=lambda _: None, leave_of=lambda _: None)
    weights = SimpleNamespace(bring_up=lambda url: None)
    config = VllmConfig(model="/models/m", served_model_name="m")
    return Routing(config, cast(Any, members), cast(Any, router), cast(Any, weights), lambda: None)


def looked(routing: Routing) -> None:
    """Once, with all that comes of it."""
    routing.look()
    routing._adding.shutdown(wait=True)


def test_a_replica_that_serves_takes_requests(routing: Routing, router: StubRouter) -> None:
    looked(routing)
    assert router.known == [URL] and routing.takes(0) and routing.serves


def test_one_that_is_lost_while_the_router_takes_it_gets_none(routing: Routing, router: StubRouter) -> None:
    router.meanwhile = lambda: routing.lose(0, "it died")
    looked(routing)
    assert router.known == [] and not routing.takes(0) and routing.numbers == []
