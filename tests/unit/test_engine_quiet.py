"""When nothing is under way at a replica any more that gets no requests."""

from hpcjet.engine.quiet import Quiet


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_two_looks_in_a_row_after_it_parted_must_find_nothing() -> None:
    clock = Clock()
    quiet = Quiet(60.0, clock=clock)
    assert quiet.is_quiet(0), "it never got a request"
    quiet.part(0)
    idle, busy = {"running": 0.0, "waiting": 0.0}, {"running": 0.0, "waiting": 1.0}
    for load in (idle, idle):
        quiet.take(0, load, began=99.0)
    assert not quiet.is_quiet(0), "they began before"
    for load in (idle, busy, idle, {}, idle):
        quiet.take(0, load, began=clock.now)
        assert not quiet.is_quiet(0)
    quiet.take(0, idle, began=clock.now)
    assert quiet.is_quiet(0)


def test_one_that_tells_nothing_has_its_time() -> None:
    clock = Clock()
    quiet = Quiet(60.0, clock=clock)
    quiet.part(0)
    clock.now += 59
    quiet.take(0, {}, began=clock.now)
    assert not quiet.is_quiet(0)
    clock.now += 1
    assert quiet.is_quiet(0)
    quiet.part(0)
    assert not quiet.is_quiet(0)
    quiet.forget(0)
    assert quiet.is_quiet(0)
