"""The variables that bind everything on this node to the network that the run uses."""

import logging

from hpcjet.cluster.network import Link, interface_names
from hpcjet.cluster.network_env import network_env
from hpcjet.cluster.site import Site

_log = logging.getLogger(__name__)


def network_env_here(link: Link, site: Site) -> dict[str, str]:
    """The variables that bind everything on this node to the chosen interface; what the user set is kept."""
    found = network_env(link, interface_names(), site.env)
    for warning in found.warnings:
        _log.warning("%s", warning.text)
    return found.values
