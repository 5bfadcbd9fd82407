"""Ray on one node, as head and workers have it alike: its process, its object store, and what is said when it ends."""

import shutil
from pathlib import Path

from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.ray_args import object_store_bytes
from hpcjet.cluster.site import Site


def start_ray(site: Site) -> Child:
    """`ray start`, importing; it waits for its arguments on standard input."""
    return Child("ray", [site.plan.python, "-u", "-m", "hpcjet.cluster.raynode"], env=site.env, log=site.log("ray"))


def object_store(site: Site) -> int:
    """Bytes of Ray's object store on this node."""
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 1 << 62
    return object_store_bytes(site.place, asked_gb=site.plan.object_store_gb, shm_free_bytes=free)


def ray_ended(site: Site, ray: Child, what: str) -> str:
    """The message when Ray's process is gone, with the end of its log."""
    return f"Ray on {site.place.host} {what} (exit code {ray.returncode}); {ray.log} ends with:\n{tail(ray.log)}"
