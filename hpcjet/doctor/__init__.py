"""What works on a cluster: one small module for each subject, which looks (facts) and assesses (lines for a person).

A look touches the machine and returns plain data; `assess` is pure. The looks at nodes run there, `python -m
hpcjet.doctor.node` once on each; those at Slurm run where the command was given.
"""
