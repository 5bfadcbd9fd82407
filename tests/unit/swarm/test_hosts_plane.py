"""What a host does when a part of the data plane is away."""

import time
from typing import Any

import pytest

from hpcjet.swarm.actors import ActorGone
from hpcjet.swarm.hosts import plane
from hpcjet.swarm.hosts.plane import Away
from hpcjet.swarm.hosts.spec import HostError


def test_an_actor_that_comes_back_is_asked_again_and_one_that_does_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = True

    def get_actor(name: str) -> Any:
        if gone:
            raise ActorGone(f"no actor has the name {name}")
        return "handle"

    monkeypatch.setattr(plane, "get_actor", get_actor)
    monkeypatch.setattr(plane, "AGAIN_S", 0.01)
    away = Away("swarm-index", "the index", patience_s=0.2)
    assert away.ask(lambda actor: actor) is None
    gone = False
    assert away.ask(lambda actor: actor) == "handle"
    time.sleep(0.25)
    gone = True
    assert away.ask(lambda actor: actor) is None, "its patience begins anew"
    message = r"the index \(swarm-index\): no answer for 0.2 s \(ActorGone: no actor has the name swarm-index\); see"
    with pytest.raises(HostError, match=message):
        for _ in range(10_000):
            away.ask(lambda actor: actor)


def test_what_an_actor_answers_with_an_error_of_its_own_is_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "get_actor", lambda name: name)

    def call(actor: Any) -> None:
        raise ValueError("it does not fit")

    with pytest.raises(ValueError, match="it does not fit"):
        Away("swarm-index", "the index", patience_s=1).ask(call)
