"""What must not use up the node, keep others waiting, or outlive its attempt."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from field import Done, Field, gone, showing, wait_until
from neighbour import Neighbour
from rows_bombs import ROWS, Bomb

OUTLIVES_S = 1.0
"""What may be left of an attempt so long after its end."""
KEEPER_BYTES = 200 << 20
_number = itertools.count()


@pytest.mark.parametrize("bomb", ROWS, ids=lambda row: row.name)
def test_a_bomb_hits_nobody_else(bomb: Bomb, usual: Field, request: pytest.FixtureRequest) -> None:
    hit(bomb, usual, request)


@pytest.mark.parametrize("bomb", [row for row in ROWS if row.everywhere], ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["root-overlay", "ordinary-copy", "ordinary-userns"])
def test_nor_elsewhere(bomb: Bomb, name: str, fields: Callable[[str], Field], request: pytest.FixtureRequest) -> None:
    hit(bomb, fields(name), request)


def hit(bomb: Bomb, field: Field, request: pytest.FixtureRequest) -> None:
    if not field.has("neighbour"):
        field.open("neighbour")
    if bomb.waits_for:
        request.applymarker(pytest.mark.xfail(reason=f"waits for {bomb.waits_for}", strict=True))
    field.estate.touched()
    box = f"bomb{next(_number)}"
    field.open(box, limits=dict(bomb.limits))
    try:
        with Neighbour(field) as neighbour:
            done = field.attack(bomb, box=box)
            check(bomb, done, field)
            if not done.error:
                assert field.run(box, "echo usable", timeout_s=30).output == b"usable\n"
            if bomb.name == "memory-in-the-background":
                assert wait_until(lambda: field.run(box, "pgrep -c python3").output == b"0\n", timeout_s=10)
        assert not neighbour.complaint
        assert not bomb.after or not bomb.after(field)
    finally:
        pids = showing(field.scratch / box)
        field.ask("close", box=box).result(30)
    assert gone(pids, timeout_s=OUTLIVES_S), pids
    assert not Path(field.scratch / box).exists()
    assert not field.estate.touched()


def check(bomb: Bomb, done: Done, field: Field) -> None:
    """It ended as it should, and used no more than it may."""
    how = done.limit or ("timeout" if done.timed_out else "code")
    assert how in bomb.ends and not done.error, done
    assert b"REACHED" not in done.output, done
    assert done.seconds < bomb.timeout_s + 5, done
    assert len(done.output) <= 1_000_000
    if bomb.name == "output-bomb":
        assert done.dropped_bytes + len(done.output) == 10 << 30
        assert field.ask("rss").result(10) < KEEPER_BYTES
    if bomb.most_bytes:
        assert int(done.output.split()[-1]) <= bomb.most_bytes, done
