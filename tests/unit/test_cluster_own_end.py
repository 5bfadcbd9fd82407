"""When the head allocation ends, as far as Slurm tells."""

import time
from pathlib import Path

import pytest
from slurm_stubs import on_path, stub

from hpcjet.cluster.own_end import OwnEnd


@pytest.mark.parametrize(
    ("env", "asks", "left_s"),
    [({}, True, 90), ({"SLURM_JOB_END_TIME": "5000"}, True, None), ({}, False, None)],
    ids=["asked", "told", "not asked"],
)
def test_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], asks: bool, left_s: float | None
) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    for name, value in {"SLURM_JOB_ID": "7", **env}.items():
        monkeypatch.setenv(name, value)
    folder = on_path(tmp_path, monkeypatch)
    stub(folder, "squeue", says="1:30\n", first=f"echo asked >>{folder}/calls")
    end = OwnEnd(ask=asks)
    deadline = time.monotonic() + 300
    while left_s and end.known() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    known = end.known()
    assert (folder / "calls").exists() == bool(left_s)
    if left_s:
        assert known and abs(known - time.time() - left_s) < 60
    else:
        assert known == (float(env["SLURM_JOB_END_TIME"]) if env else None)
