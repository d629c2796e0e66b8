"""Branches of the pure packages that no simulation of six minutes is expected to meet, and why.

By file, function, text of the line and way. What is met all the same does no harm.
"""

UNMET: dict[tuple[str, str, str, str], str] = {}

__all__ = ["UNMET"]
