"""Scaffolds: programs that drive an agent through a task. A new one is a file with a class, and a line in the table."""

from importlib import import_module

from hpcjet.errors import ConfigError
from hpcjet.swe.scaffold.settings import ScaffoldSettings, scaffold_settings
from hpcjet.swe.scaffold.spec import Outcome, Scaffold

__all__ = ["SCAFFOLDS", "Outcome", "Scaffold", "ScaffoldSettings", "get_scaffold", "scaffold_settings"]

SCAFFOLDS = {
    "mini": "hpcjet.swe.scaffold.mini:MiniScaffold",
    "reference": "hpcjet.swe.scaffold.reference:ReferenceScaffold",
}
"""Name -> module and class, which is built from ScaffoldSettings; imported when asked for."""


def get_scaffold(name: str, settings: ScaffoldSettings | None = None) -> Scaffold:
    """A scaffold, which many threads may use at the same time. Raises ConfigError for an unknown name."""
    if name not in SCAFFOLDS:
        raise ConfigError(f"exp.scaffold={name} is not known: choose one of {', '.join(SCAFFOLDS)}")
    module, _, cls = SCAFFOLDS[name].partition(":")
    scaffold: Scaffold = getattr(import_module(module), cls)(settings or ScaffoldSettings())
    return scaffold
