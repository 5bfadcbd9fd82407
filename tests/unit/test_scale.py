"""What a run on 10,000 nodes costs its head, and the Slurm controller. Simulated, as tests/bench/scale.py says."""

import resource
import sys
from collections import Counter
from pathlib import Path

import pytest
from slurm_stubs import on_path, stub

from hpcjet.config.compose import compose
from hpcjet.start import new_run

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from scale import measure

NODES = 10_000


@pytest.mark.alone
def test_ten_thousand_nodes_meet_within_five_seconds_of_cpu() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NODES + 100:
        pytest.skip(f"ulimit -Hn is below {NODES}: a connection per node needs an open file each")
    seconds = measure(NODES)
    assert sum(each["cpu_s"] for each in seconds.values()) < 5, seconds


def test_slurm_is_asked_as_often_for_many_nodes_as_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    for name, says in {"sbatch": "1\n", "sinfo": "", "squeue": "", "sacct": "", "sacctmgr": "", "scontrol": ""}.items():
        stub(folder, name, says=says, first=f"echo {name} >>{folder}/calls")

    def calls(nodes: int) -> Counter[str]:
        (folder / "calls").write_text("")
        new_run(compose(["+exp=noop", "cluster=slurm", f"cluster.nodes={nodes}", f"run.root={tmp_path}/runs"]))
        return Counter((folder / "calls").read_text().split())

    few = calls(1)
    assert calls(NODES) == few and few["sbatch"] <= 2 and few.total() <= 6
