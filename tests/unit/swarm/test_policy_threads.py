"""Policies are made by several threads at once, while garbage is collected."""

import subprocess
import sys

CODE = """
import gc, sys, threading
import torch
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.policy import PolicySpec
from hpcjet.swarm.spaces.layout import ActionLayout, Categorical
from hpcjet.swarm.torch_backend import make_policy

gc.set_threshold(20)
sys.setswitchinterval(1e-6)
spec, made = PolicySpec(2, ActionLayout((Categorical(2),))), []

def make():
    for _ in range(60):
        rings = [[torch.zeros(3)] for _ in range(30)]
        for ring in rings:
            ring.append(ring)  # only the collector frees it, wherever that comes
        made.append(make_policy(spec, PolicyConfig(hidden=[2, 2]), 0).version)

state = torch.get_rng_state()
threads = [threading.Thread(target=make) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(made), bool((state == torch.get_rng_state()).all()))
"""


def test_none_waits_for_another_and_the_numbers_of_the_process_are_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "480 True", done.stdout + done.stderr
