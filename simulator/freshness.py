"""Fresh: what a processor knows of another's row never becomes older.

Answers may come in another order than their calls were sent. The ETags of the simulated storage are numbered, so they
tell which of two values of a row came later.
"""

from collections.abc import Mapping

from samza_azure.group.rows import ProcessorRow


class Freshness:
    """The newest value of each row that one life has known."""

    def __init__(self) -> None:
        self._rows: Mapping[str, ProcessorRow] = {}
        self._newest: dict[str, int] = {}

    def look(self, rows: Mapping[str, ProcessorRow]) -> str | None:
        """Return what is wrong with the rows that the life knows now, if anything."""
        if rows is self._rows:
            return None
        self._rows = rows
        for name, row in rows.items():
            number = int(row.etag.strip('"'), 16)
            if number < self._newest.get(name, 0):
                return f"Fresh: a value of the row of {name} is known that is older than the one before"
            self._newest[name] = number
        return None


__all__ = ["Freshness"]
