"""The kinds of MPI that Slurm starts."""

from hpcjet.command.step import mpi_types
from hpcjet.doctor.line import Facts, Line, ok, warn

SUBJECT = "MPI"


def look(settings: dict[str, str]) -> Facts:
    return {"types": mpi_types(), "default": settings.get("MpiDefault", "")}


def assess(facts: Facts) -> list[Line]:
    types, default = facts["types"], facts["default"]
    if types is None:
        return [warn(SUBJECT, "srun --mpi=list does not answer", "for +exp=mpi set exp.mpi to what the site documents")]
    if not any(each.startswith(("pmi", "cray")) for each in types):
        do = "+exp=mpi needs one of pmix, pmi2, cray_shasta: ask the site; all else works without"
        return [warn(SUBJECT, f"{', '.join(types)}: none for MPI programs", do)]
    return [ok(SUBJECT, f"{', '.join(types)}" + (f"; the default is {default}" if default else ""))]
