"""Records of calls: told as what is new, read back whole; durable; bounded."""

import asyncio
import copy
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.engine.gateway import calls as calls_module
from hpcjet.engine.gateway.calls import Call, Decoder, Encoder, attempts, read_calls
from hpcjet.engine.gateway.metrics import Metrics
from hpcjet.engine.gateway.recorder import Recorder
from hpcjet.engine.router import RouterWorker
from hpcjet.errors import StoreError


def talk(dice: random.Random, *, attempt: str, turns: int) -> list[Call]:
    """The calls of one conversation, now and then changed in its past."""
    messages: list[Any] = [{"role": "system", "content": "s"}]
    ids, found = [1, 2, 3], []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"turn {turn}"})
        ids = ids + [dice.randrange(2**31) for _ in range(dice.randrange(4))]
        if dice.random() < 0.2:
            messages = [*messages[: dice.randrange(len(messages))], {"role": "user", "content": "again"}]
            ids = ids[: dice.randrange(1, len(ids) + 1)]
        answer = [dice.randrange(100_000) for _ in range(dice.randrange(5))]
        choice = {"message": {"content": str(turn)}, "ids": answer, "logprobs": [-0.25] * len(answer)}
        call = Call(
            attempt=attempt, id=f"{attempt}-{turn}", began=float(turn), ended=turn + 0.5, messages=messages,
            params={"model": "m", "n": turn // 3}, prompt_ids=list(ids), choices=[choice],
            usage={"prompt_tokens": len(ids)},
        )  # fmt: skip
        found.append(copy.deepcopy(call))
        ids = ids + answer
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_calls_come_back_as_they_were(seed: int, turns: int) -> None:
    dice = random.Random(seed)
    sent = [call for name in "ab" for call in talk(dice, attempt=name, turns=turns)]
    dice.shuffle(sent)
    encoder, decoder = Encoder(), Decoder()
    assert [decoder.call(encoder.line(call)) for call in sent] == sent


def test_a_long_conversation_takes_its_length_and_not_its_square() -> None:
    messages: list[Any] = []
    ids: list[int] = []
    encoder, total = Encoder(), 0
    for turn in range(100):
        messages = [*messages, {"role": "user", "content": "x" * 1000}]
        ids = ids + list(range(300))
        call = Call(attempt="a", id=str(turn), began=0, ended=0, messages=messages, prompt_ids=ids)
        total += len(encoder.line(call))
    assert 100 * 1000 < total < 100 * 4000


def test_what_is_remembered_is_bounded_and_the_forgotten_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_REMEMBERED_BYTES", 20_000)
    encoder, decoder = Encoder(), Decoder()
    for round_ in range(2):
        for number in range(50):
            call = Call(attempt=str(number), id=f"{number}-{round_}", began=0, ended=0, prompt_ids=list(range(100)))
            assert decoder.call(encoder.line(call)) == call
            assert encoder._size < 22_000


def test_a_line_that_continues_a_missing_one_is_no_record() -> None:
    encoder = Encoder()
    _, second = [encoder.line(call) for call in talk(random.Random(1), attempt="a", turns=2)]
    with pytest.raises(ValueError, match="continues call a-0"):
        Decoder().call(second)


async def _record(folder: Path, sent: list[Call]) -> Recorder:
    recorder = Recorder(folder, "n/1")
    await asyncio.gather(*(recorder.add(call) for call in sent))
    recorder.close()
    return recorder


def test_records_are_on_disk_when_add_returns_and_share_syncs(tmp_path: Path) -> None:
    sent = [call for number in range(20) for call in talk(random.Random(number), attempt=str(number), turns=10)]
    recorder = asyncio.run(_record(tmp_path / "r", sent))
    assert list(read_calls(tmp_path / "r")) == sent
    assert recorder.syncs < len(sent) / 2
    assert [each.stat().st_mode & 0o777 for each in (tmp_path / "r").iterdir()] == [0o600]
    assert [call.id for call in attempts(read_calls(tmp_path / "r"))["3"]] == [f"3-{turn}" for turn in range(10)]


def test_a_half_line_at_the_end_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sent = talk(random.Random(1), attempt="a", turns=3)
    asyncio.run(_record(tmp_path, sent))
    segment = next(tmp_path.glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes()[:-5])
    assert list(read_calls(tmp_path)) == sent[:2]
    assert "unfinished last line" in caplog.text


def test_a_full_disk_fails_the_call_and_the_next_segment_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = talk(random.Random(5), attempt="a", turns=4)
    really = os.fdatasync

    async def work() -> None:
        recorder = Recorder(tmp_path, "n")
        await recorder.add(sent[0])
        monkeypatch.setattr(os, "fdatasync", _full)
        with pytest.raises(StoreError, match=r"No space left.*engine\.record=off"):
            await recorder.add(sent[1])
        monkeypatch.setattr(os, "fdatasync", really)
        await recorder.add(sent[2])
        await recorder.add(sent[3])
        recorder.close()
        with pytest.raises(StoreError, match="after the end"):
            await recorder.add(sent[3])

    asyncio.run(work())
    assert list(read_calls(tmp_path)) == [sent[0], sent[2], sent[3]]
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    metrics.ended.update(["ok", "ok", "context"])
    metrics.in_flight["r2"] += 4
    metrics.answered(replica='r"1', usage={"prompt_tokens": 7, "completion_tokens": 3}, seconds=0.2)
    metrics.answered(replica="r2", usage=None, seconds=1000)
    text = metrics.text([RouterWorker("http://h:1", True)], {"record_bytes_total": 10})
    lines = text.splitlines()
    assert 'hpcjet_gateway_requests_total{class="ok"} 2' in lines
    assert 'hpcjet_gateway_replica_answers_total{replica="r\\"1"} 1' in lines
    assert 'hpcjet_gateway_replica_in_flight{replica="r2"} 4' in lines and "hpcjet_gateway_in_flight 4" in lines
    assert 'hpcjet_gateway_replica_healthy{url="http://h:1"} 1' in lines
    assert 'hpcjet_gateway_request_seconds_bucket{le="0.25"} 1' in lines
    assert 'hpcjet_gateway_request_seconds_bucket{le="+Inf"} 2' in lines
    assert 'hpcjet_gateway_tokens_total{kind="prompt"} 7' in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    for line in lines:
        if not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert name in names or name.rsplit("_", 1)[0] in names, line
            float(line.rsplit(" ", 1)[1])
