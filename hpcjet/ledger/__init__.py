"""The ledger: where the node-hours of a run went, by group of nodes. Pure: events and usage in, figures out."""

from hpcjet.ledger.account import KINDS, GroupUse, Ledger
from hpcjet.ledger.lines import ledger_lines
from hpcjet.ledger.read import read_ledger
from hpcjet.ledger.view import NodesView, nodes_view

__all__ = ["KINDS", "GroupUse", "Ledger", "NodesView", "ledger_lines", "nodes_view", "read_ledger"]
