"""The workload of exp=formation, gymnasium and pettingzoo: a swarm is trained."""

import logging

from hpcjet.cluster.signals import Interrupted
from hpcjet.config.root import LaunchConfig
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import EXIT_OK, StoreError
from hpcjet.plan import Plan
from hpcjet.swarm.form import Form, form_of
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)


class SwarmWorkload:
    """Trains until it has learned for as long as it shall, then plays and writes the report."""

    connects = True

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, SwarmConfig)
        self._plan, self._exp, self._seed = plan, config.exp, config.seed
        self._form: Form | None = None

    def prepare(self) -> None:
        """See what a world is like."""
        self._form = form_of(self._exp)

    def __enter__(self) -> "SwarmWorkload":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cluster: Cluster) -> int:
        from hpcjet.swarm.driver.training import Training
        from hpcjet.swarm.watch import write_report

        assert self._form is not None
        training = Training(self._plan, self._exp, self._form, cluster, seed=self._seed)
        try:
            training.run()
        except Interrupted:
            training.stop()
            raise
        finally:
            training.end()
        try:
            write_report(self._plan.run)
        except StoreError as error:
            _log.warning("%s; write it with: hpcjet report %s", error, self._plan.run)
        return EXIT_OK
