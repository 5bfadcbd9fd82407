"""Questions that are asked together."""

import asyncio
from collections.abc import Sequence

import pytest

from hpcjet.swarm.pool.pace import Pace
from hpcjet.swarm.pool.together import COLLECT_S, Together


def test_what_comes_within_a_moment_goes_together() -> None:
    calls: list[list[int]] = []

    async def ask(questions: Sequence[int], wait_s: float) -> list[int | None]:
        calls.append(list(questions))
        await asyncio.sleep(0)
        return [2 * question if question % 10 or len(calls) > 2 else None for question in questions]

    async def scene() -> list[int | None]:
        asker: Together[int, int] = Together(ask)
        first = asyncio.ensure_future(asker.ask(1, 60))
        await asyncio.sleep(0)
        found = await asyncio.gather(first, *(asker.ask(question, 60) for question in (2, 10, 3)))
        assert asker.calls == len(calls) and not asker.waiting
        return found

    assert asyncio.run(scene()) == [2, 4, 20, 6]
    assert calls == [[1], [2, 10, 3], [10]]  # 10 had no answer yet, and holds up none of the others


def test_no_question_waits_behind_one_that_waits_for_it() -> None:
    """A seat that is ahead waits until the one that is behind has begun; both ask through the same pool."""
    begun = asyncio.Event()

    async def ask(questions: Sequence[str], wait_s: float) -> list[bool | None]:
        if "behind" in questions:
            begun.set()
        else:
            await asyncio.wait_for(begun.wait(), 60)
        return [True] * len(questions)

    async def scene() -> list[bool | None]:
        asker: Together[str, bool] = Together(ask)
        ahead = asyncio.ensure_future(asker.ask("ahead", 60))
        await asyncio.sleep(0.02)
        return [await asker.ask("behind", 60), await ahead]

    assert asyncio.run(scene()) == [True, True]


def test_who_waited_long_enough_gets_none_and_errors_reach_all() -> None:
    async def never(questions: Sequence[int], wait_s: float) -> list[int | None]:
        await asyncio.sleep(min(wait_s, 0.01))
        return [None] * len(questions)

    async def broken(questions: Sequence[int], wait_s: float) -> list[int | None]:
        raise ValueError(f"{len(questions)} questions")

    async def scene() -> list[object]:
        late: Together[int, int] = Together(never)
        assert await late.ask(1, 0.5) is None and late.calls > 1
        asker: Together[int, int] = Together(broken)
        return await asyncio.gather(asker.ask(1, 60), asker.ask(2, 60), return_exceptions=True)

    found = asyncio.run(scene())
    assert [type(error) for error in found] == [ValueError] * 2
    with pytest.raises(ValueError, match="1 questions"):
        asyncio.run(Together(broken).ask(1, 1))


def test_questions_are_collected_for_a_little_of_the_time_that_a_fragment_takes() -> None:
    pace = Pace()
    assert pace.pause_s() == COLLECT_S
    for at in range(3):
        for source in ("s0", "s1"):
            pace.inserted(source, 5 * at, 2.0 * at)
            pace.inserted(source, 5 * at, 2.0 * at + 0.1)  # another group of the same steps
    assert pace.fragment_s == pytest.approx(2.0) and pace.pause_s() == pytest.approx(0.04)
    for at in range(3, 100):
        pace.inserted("s0", 5 * at, 0.1 * at)
    assert pace.pause_s() == COLLECT_S

    calls: list[list[int]] = []

    async def ask(questions: Sequence[int], wait_s: float) -> list[int | None]:
        calls.append(list(questions))
        return list(questions)

    async def scene() -> None:
        asker: Together[int, int] = Together(ask, lambda: 0.5)
        first = asyncio.ensure_future(asker.ask(0, 60))
        assert await first == 0  # the first one goes at once
        await asyncio.gather(*(asker.ask(number, 60) for number in range(1, 5)))

    asyncio.run(scene())
    assert calls == [[0], [1, 2, 3, 4]]
