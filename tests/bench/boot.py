"""How long a Ray cluster takes on lab nodes: hpcjet, and what one would write by hand.

    sudo .venv/bin/python tests/bench/boot.py [--nodes 3] [--runs 3] [--ways minimum classic symmetric]

The work is the same: wait for all nodes, run short tasks. Prints JSON lines per way, in seconds of the job: `ready`,
until the work was done; `release`, from then until the batch script ended; `job`, both together. The ways take turns.
`minimum` is the least that one would write: one srun, head and workers together, conditions instead of sleeps, a file
that tells the end. `classic` is the template with sleeps that people copy from each other. `symmetric` is Ray's own
`ray symmetric-run`. Brings up the lab if it is down.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcjet.lab import Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from launching import Login

WORK = """\
import os, socket, time, ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(os.environ["NODES"]):
    time.sleep(0.05)
ask = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(lambda: socket.gethostname())
print(sorted(set(ray.get([ask.remote() for _ in range(6)]))), "WORKDONE", time.time(), flush=True)
"""
START = "echo JOBSTART $(date +%s.%N)"
END = "trap 'echo JOBEND $(date +%s.%N)' EXIT"
HEADER = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task=2 --mem=8G --time=5
{start}
{end}
export NODES={nodes} RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
"""
MINIMUM = """\
export done_file=$PWD/done.$SLURM_JOB_ID first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun bash -c '
  me=$(hostname -I | cut -d" " -f1)
  if [ $SLURM_NODEID = 0 ]; then
    ray start --head --port=6379 --node-ip-address=$me --num-cpus=2 --include-dashboard=false >/dev/null
    python work.py; touch $done_file
  else
    until (: </dev/tcp/$first/6379) 2>/dev/null; do sleep 0.1; done
    ray start --address=$first:6379 --node-ip-address=$me --num-cpus=2 >/dev/null
    until [ -e $done_file ]; do sleep 0.2; done
  fi'
"""
CLASSIC = """\
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST)); head=${nodes[0]}
ip=$(srun --nodes=1 --ntasks=1 -w $head hostname -I | cut -d' ' -f1)
srun --nodes=1 --ntasks=1 --overlap -w $head ray start --head --node-ip-address=$ip --port=6379 --num-cpus=2 --block &
sleep 10
for node in ${nodes[@]:1}; do
  srun --nodes=1 --ntasks=1 --overlap -w $node ray start --address=$ip:6379 --num-cpus=2 --block & sleep 5
done
srun --nodes=1 --ntasks=1 --overlap -w $head python work.py
"""


SYMMETRIC = """\
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun ray symmetric-run --address $head:6379 --min-nodes $NODES --num-cpus 2 -- python work.py
"""
WAYS = {"minimum": MINIMUM, "classic": CLASSIC, "symmetric": SYMMETRIC}

Figures = dict[str, float]
"""Seconds by name: ready, release, job."""


def by_hand(login: Login, name: str, body: str, folder: Path, *, nodes: int) -> Figures:
    """A script written by hand."""
    place = folder / name
    header = HEADER.format(nodes=nodes, start=START, end=END)
    for file, text in {"work.py": WORK, "job.sbatch": f"{header}cd {place}\n{body}"}.items():
        made = login.run("bash", "-c", f"mkdir -p {place} && cat > {place}/{file} <<'E'\n{text}E\n")
        assert made.code == 0, made.output
    done = login.run("sbatch", "-W", "-o", f"{place}/out", f"{place}/job.sbatch", timeout_s=600)
    output = (place / "out").read_text()
    assert done.code == 0 and "['n" in output, done.output + output
    return figures(output, work_done=float(output.split("WORKDONE ")[1].split()[0]))


def ours(login: Login, folder: Path, *, nodes: int) -> Figures:
    """+exp=noop."""
    words = [
        "+exp=noop", "cluster=lab", f"cluster.nodes={nodes}", "cluster.cpus_per_node=2", "cluster.mem_gb=8",
        f'cluster.setup=["{START}","{END}"]', f"run.root={folder}",
    ]  # fmt: skip
    done = login.launch(*words)
    assert done.code == 0 and done.run, done.output
    (log,) = done.run.submit_folder.glob("*_0_log.out")
    work = json.loads((done.run.path / "noop.json").read_text())
    assert len(work["hosts"]) == nodes
    return figures(log.read_text(), work_done=work["answered"])


def figures(output: str, *, work_done: float) -> Figures:
    """From the marks of the batch script and the time at which the work was done."""
    words = output.split()
    begin, end = (float(words[words.index(mark) + 1]) for mark in ("JOBSTART", "JOBEND"))
    return {"ready": work_done - begin, "release": end - work_done, "job": end - begin}


def measure(login: Login, *, nodes: int, runs: int, ways: Sequence[str]) -> dict[str, list[Figures]]:
    """Way -> figures of each run; the ways take turns, so that a busy moment hits all of them."""
    base = login.home / "bench"
    found: dict[str, list[Figures]] = {name: [] for name in ("hpcjet", *ways)}
    for number in range(runs):
        folder = base / f"boot-{login.run('date', '+%s%N').output.strip()}-{number}"
        found["hpcjet"].append(ours(login, folder, nodes=nodes))
        for name in ways:
            found[name].append(by_hand(login, name, WAYS[name], folder, nodes=nodes))
    return found


def median(of: Sequence[Figures], name: str) -> float:
    return statistics.median(each[name] for each in of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["minimum"])
    arguments = parser.parse_args()
    lab = Lab()
    was_up = lab.status().is_up
    if not was_up:
        lab.up(4)
    try:
        found = measure(Login(lab), nodes=arguments.nodes, runs=arguments.runs, ways=arguments.ways)
    finally:
        if not was_up:
            lab.down()
    for way, of in found.items():
        row: dict[str, object] = {"way": way, "nodes": arguments.nodes}
        row |= {f"{name}_s": round(median(of, name), 2) for name in ("ready", "release", "job")}
        print(json.dumps({**row, "jobs_s": [round(each["job"], 2) for each in of]}))
    for way in arguments.ways:
        ratios = {name: round(median(found["hpcjet"], name) / median(found[way], name), 2) for name in ("ready", "job")}
        print(json.dumps({f"hpcjet / {way}": ratios}))


if __name__ == "__main__":
    main()
