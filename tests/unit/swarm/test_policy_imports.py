"""A host has to act again soon after it died: what its policy imports is torch, and not all that torch can import."""

import subprocess
import sys

CODE = """
import sys
import numpy as np
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.formation import FormationVector
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.policy.routes import policy_specs, routes

vector = FormationVector(FormationConfig(agents=3), 2, seed=0)
ways = routes(vector.spec, {})
made = {name: backend("torch").make_policy(each, PolicyConfig(), 0)
        for name, each in policy_specs(vector.spec, ways, central_critic=False).items()}
acts = Actor(vector.spec, ways, made, seed=0, with_values=True).act(vector.reset())
assert all(np.isfinite(each.action).all() for each in acts.values()) and "torch" in sys.modules
print({"sympy", "torch._dynamo"} & set(sys.modules))
"""


def test_acting_does_without_the_compiler_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
