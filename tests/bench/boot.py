"""Job time of a workload that does nothing, on three lab nodes: hpcjet, a hand-written minimum, a classic template.

    sudo .venv/bin/python tests/bench/boot.py [--runs 3] [--classic]

Prints JSON lines with the seconds from the first line of the batch script to its last. `minimum` is the least that one
would write by hand: one srun, head and workers together, conditions instead of sleeps, a file that tells the end.
`classic` is the template with sleeps that people copy from each other. Brings up the lab if it is down.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from hpcjet.lab import Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from launching import Login

NODES = 3
WORK = """\
import os, socket, time, ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(os.environ["NODES"]):
    time.sleep(0.05)
ask = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(lambda: socket.gethostname())
print(sorted(set(ray.get([ask.remote() for _ in range(6)]))))
"""
START = "echo JOBSTART $(date +%s.%N)"
END = "trap 'echo JOBEND $(date +%s.%N)' EXIT"
HEADER = f"""\
#!/bin/bash
#SBATCH --nodes={NODES} --ntasks-per-node=1 --cpus-per-task=2 --mem=8G --time=5
{START}
{END}
export NODES={NODES} RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
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


def by_hand(login: Login, name: str, body: str, folder: Path) -> float:
    """Job seconds of a script written by hand."""
    place = folder / name
    made = login.run("bash", "-c", f"mkdir -p {place} && cat > {place}/work.py <<'E'\n{WORK}E\n")
    assert made.code == 0, made.output
    made = login.run("bash", "-c", f"cat > {place}/job.sbatch <<'E'\n{HEADER}cd {place}\n{body}E\n")
    assert made.code == 0, made.output
    done = login.run("sbatch", "-W", "-o", f"{place}/out", f"{place}/job.sbatch")
    output = (place / "out").read_text()
    assert done.code == 0 and "['n" in output, done.output + output
    return between(output)


def ours(login: Login, folder: Path) -> float:
    """Job seconds of +exp=noop."""
    words = [
        "+exp=noop", "cluster=lab", f"cluster.nodes={NODES}", "cluster.cpus_per_node=2", "cluster.mem_gb=8",
        f'cluster.setup=["{START}","{END}"]', f"run.root={folder}",
    ]  # fmt: skip
    done = login.launch(*words)
    assert done.code == 0 and done.run, done.output
    (log,) = done.run.submit_folder.glob("*_0_log.out")
    return between(log.read_text())


def between(output: str) -> float:
    """Seconds between the two marks."""
    words = output.split()
    return float(words[words.index("JOBEND") + 1]) - float(words[words.index("JOBSTART") + 1])


def measure(login: Login, *, runs: int, classic: bool) -> dict[str, list[float]]:
    """Way -> job seconds of each run; the ways take turns, so that a busy moment hits all of them."""
    base = login.home / "bench"
    ways = {"minimum": MINIMUM, **({"classic": CLASSIC} if classic else {})}
    seconds: dict[str, list[float]] = {name: [] for name in ("hpcjet", *ways)}
    for number in range(runs):
        folder = base / f"boot-{login.run('date', '+%s%N').output.strip()}-{number}"
        seconds["hpcjet"].append(ours(login, folder))
        for name, body in ways.items():
            seconds[name].append(by_hand(login, name, body, folder))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--classic", action="store_true")
    arguments = parser.parse_args()
    lab = Lab()
    was_up = lab.status().is_up
    if not was_up:
        lab.up(4)
    try:
        seconds = measure(Login(lab), runs=arguments.runs, classic=arguments.classic)
    finally:
        if not was_up:
            lab.down()
    for name, values in seconds.items():
        row = {"way": name, "job_s": [round(each, 2) for each in values], "median_s": statistics.median(values)}
        print(json.dumps(row))
    ratio = statistics.median(seconds["hpcjet"]) / statistics.median(seconds["minimum"])
    print(json.dumps({"hpcjet / minimum": round(ratio, 2)}))


if __name__ == "__main__":
    main()
