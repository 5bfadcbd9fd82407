"""engine=vllm and engine=sglang: one replica of an engine that is installed in an environment of its own."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from hpcjet.config.engine import Device, ServedConfig, SglangConfig, Stage
from hpcjet.engine import sglang, vllm
from hpcjet.engine.devices import Devices, find_devices
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.environment import Command, Environment, check_module, find_environment
from hpcjet.engine.fit import check_fit
from hpcjet.engine.keyfile import write_key
from hpcjet.engine.model import find_model, read_model, weight_bytes
from hpcjet.engine.replica import FINAL, Change, Replica, Service
from hpcjet.engine.seat import Seat, compile_cache, starter
from hpcjet.engine.spec import EngineSite
from hpcjet.engine.stage import SHELF, staged_path
from hpcjet.errors import ConfigError, EngineError

_log = logging.getLogger(__name__)


class ServedEngine:
    """Engine that runs a model on this node, watched and started again when it fails."""

    def __init__(
        self, config: ServedConfig, site: EngineSite, *, on_change: Callable[[Change], None] | None = None
    ) -> None:
        self._config, self._site, self._on_change = config, site, on_change
        self._replica: Replica | None = None

    def start(self) -> None:
        """Raises EngineError for what is wrong already before the engine starts."""
        try:
            service = self._service(find_devices())
        except (ConfigError, EngineError, OSError) as error:
            log = _noted(self._site.log, f"hpcjet did not start the engine: {error}")
            raise EngineError(f"{error}; log: {log}") from None
        self._replica = Replica(service, self._config, on_change=self._on_change)
        self._replica.start()

    def wait_ready(self, *, deadline: float) -> Endpoint:
        assert self._replica is not None, "start comes first"
        self._replica.wait_ready(deadline=deadline)
        return self._endpoint()

    @property
    def replica(self) -> Replica | None:
        """None before the start."""
        return self._replica

    @property
    def pid(self) -> int | None:
        return self._replica.pid if self._replica else None

    def alive(self) -> bool:
        """Also while it is started again: only what failed for good is not."""
        return self._replica is not None and self._replica.change.state not in FINAL

    def stop(self) -> None:
        if self._replica is not None:
            self._replica.stop()
        sglang.key_file(self._seat(Path(), Devices())).unlink(missing_ok=True)

    def restart(self, reason: str) -> None:
        """End the engine and start it again, as if it had failed for this reason; if it runs."""
        if self._replica is not None:
            self._replica.restart(reason)

    def _service(self, devices: Devices) -> Service:
        config, site = self._config, self._site
        model = find_model(config.model)
        weight_bytes(model)  # a file that is missing or was cut short is told now, and not after minutes of loading
        seat = self._seat(staged_path(model, config.stage, private=site.folder.parent), devices)
        if seat.on_gpu:
            _check_memory(config, model, devices)
        environment = find_environment(config, on_gpu=seat.on_gpu)
        check_module(environment, _module(config).MODULE)
        _prepare(config, seat)
        return Service(
            name=site.name or kind(config),
            command=command(config, seat, environment, base=os.environ),
            log=site.log,
            endpoint=self._endpoint() if site.rank == 0 else None,
            cores=site.cores,
            counters=_module(config).COUNTERS,
            around=lambda stopping: self._staged(model, seat.model, stopping),
        )

    @contextlib.contextmanager
    def _staged(self, model: Path, copy: Path, stopping: Callable[[], bool]) -> Iterator[None]:
        """With engine.stage the weights are on this node for as long as the replica."""
        if self._config.stage is Stage.none:
            yield
            return
        try:
            SHELF.take(
                model, copy, say=self._say, stopping=stopping, parent=self._site.stage_parent, key=self._site.api_key
            )
            yield
        finally:
            SHELF.give_back(copy)

    def _say(self, line: str) -> None:
        _log.info("%s: %s", self._site.name or kind(self._config), line)
        _noted(self._site.log, f"hpcjet: {line}")

    def _seat(self, model: Path, devices: Devices) -> Seat:
        site = self._site
        gpus = site.gpus if site.gpus is not None else devices.names
        return Seat(
            model=model,
            host=site.host,
            port=site.port,
            folder=site.folder,
            api_key=site.api_key,
            on_gpu=self._config.device is Device.gpu or (self._config.device is Device.auto and bool(gpus)),
            gpus=site.gpus,
            gpu_variable=devices.variable,
            gpu_type=devices.kind,
            cores=site.cores,
            num_nodes=site.num_nodes,
            rank=site.rank,
            leader=site.leader,
            leader_port=site.leader_port,
            name=site.replica or site.name or kind(self._config),
            pooled=bool(site.replica),
        )

    def _endpoint(self) -> Endpoint:
        site = self._site
        host = f"[{site.host}]" if ":" in site.host else site.host
        return Endpoint(
            base_url=f"http://{host}:{site.port}/v1",
            model=self._config.name,
            api_key=site.api_key,
            label=f"{self._config.name} ({kind(self._config)})",
        )


def kind(config: ServedConfig) -> str:
    """The name of the engine, as engine= takes it."""
    return "sglang" if isinstance(config, SglangConfig) else "vllm"


def command(config: ServedConfig, seat: Seat, environment: Environment, *, base: Mapping[str, str]) -> Command:
    """The engine's command line and whole environment."""
    module = _module(config)
    return environment.wrap(
        module.words(config, seat), base=base, changes=module.environment(config, seat), binds=_binds(config, seat)
    )


def _module(config: ServedConfig) -> ModuleType:
    return sglang if isinstance(config, SglangConfig) else vllm


def _binds(config: ServedConfig, seat: Seat) -> list[Path]:
    """What an image must see: the model (a name in a cache of links, it may be), the private folder, the caches."""
    model = seat.model.parent.parent if seat.model.parent.name == "snapshots" else seat.model
    template = [config.chat_template.absolute()] if config.chat_template else []
    return [model, seat.folder, compile_cache(config, seat, kind(config)), *template]


def _prepare(config: ServedConfig, seat: Seat) -> None:
    """Make the folders, and what the engine's starter needs."""
    seat.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    compile_cache(config, seat, kind(config)).mkdir(parents=True, exist_ok=True)
    if isinstance(config, SglangConfig):
        write_key(sglang.key_file(seat), seat.api_key)
    source = _module(config).STARTER
    starter(seat, source).parent.mkdir(exist_ok=True)
    shutil.copy(source, starter(seat, source))


def _check_memory(config: ServedConfig, model: Path, devices: Devices) -> None:
    known = int(config.gpu_memory_gb * 1024**3) if config.gpu_memory_gb else devices.memory_bytes
    if known:
        check_fit(read_model(model), config, gpu_bytes=known)


def _noted(log: Path, line: str) -> Path:
    """The log, with a line of ours at its end: those who look for what happened look there."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError:
        pass
    return log
