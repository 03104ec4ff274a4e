"""The engine's cost curve for cost-aware policies; see `artifacts.cost_curve`."""

from typing import Final

from underpaint.artifacts.cost_curve import EngineCosts, costs_beside
from underpaint.artifacts.cost_curve import read_engine_costs as read_costs

__all__ = ["SETTING", "EngineCosts", "costs_beside", "read_costs"]

SETTING: Final = "costs"
"""The name by which a user points a cost-aware policy to a file."""
