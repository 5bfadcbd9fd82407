"""The workload of exp=serve: the pool, and a word to the user where it is."""

import logging
import os
import time

from hpcjet.config.engine import ServedConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.config.serve import ServeConfig
from hpcjet.engine.pool import Pool
from hpcjet.plan import Plan
from hpcjet.serve.nodes import EngineNodes, serving_grows, serving_hosts
from hpcjet.serve.welcome import welcome
from hpcjet.workload import Cluster

KEY = "serve-key"
METRICS_KEY = "metrics-key"
"""Names of the files with the keys, among the secrets of the run."""
_LOOK_S = 0.5

_log = logging.getLogger(__name__)


class ServeWorkload:
    """Serves until it is told to stop, or no replica is left."""

    connects = False

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, ServeConfig) and isinstance(config.engine, ServedConfig)
        self._plan, self._run = plan, plan.run
        self._exp, self._engine = config.exp, config.engine

    def prepare(self) -> None:
        pass

    def __enter__(self) -> "ServeWorkload":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cluster: Cluster) -> int:
        """Returns never: SIGTERM or the end of the last replica ends it."""
        allocation, restart = os.environ["HPCJET_ALLOCATION"], int(os.environ["HPCJET_RESTART"])
        logs = self._run.logs(allocation, restart=restart)
        pool = Pool(
            self._engine, self._run, address=cluster.address, ports=cluster.ports, logs=logs, head=cluster.head,
            hosts=serving_hosts(self._plan, cluster.hosts), grows=serving_grows(self._plan),
        )  # fmt: skip
        nodes = EngineNodes(cluster, self._plan, pool)
        try:
            pool.start()
            pool.wait_ready(deadline=time.monotonic() + self._engine.start_timeout_s, awaited=nodes.awaited)
            text = self._welcome(pool)
            with self._run.output(allocation, restart=restart).open("a", encoding="utf-8") as file:
                file.write(text)
            while True:
                pool.check()
                nodes.look()
                time.sleep(_LOOK_S)
        finally:
            pool.stop()

    def _welcome(self, pool: Pool) -> str:
        valid_s = self._exp.key_hours * 3600
        endpoint = pool.open_endpoint(valid_s=valid_s)
        return welcome(
            model=endpoint.model,
            url=endpoint.base_url,
            key_file=self._run.write_secret(KEY, endpoint.api_key),
            metrics_key_file=self._run.write_secret(METRICS_KEY, pool.metrics_key(valid_s=valid_s)),
            until=time.strftime("%a %d %b %H:%M", time.localtime(time.time() + valid_s)),
        )
