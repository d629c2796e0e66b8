"""When the next container starts after one has died, and when the processor gives up. The simulator asks here, too."""

from dataclasses import dataclass, replace

from samza_azure.group.timing import DOUBLINGS_MAX

#: The back-off before the next container, doubled with each death in a row up to the second figure.
BACK_OFF_S = (0.5, 30.0)
#: A container that lived this long resets the count of deaths in a row.
FORGIVE_S = 600.0


@dataclass(frozen=True, slots=True)
class Deaths:
    """How often the container has died in a row, and how often it may."""

    limit: int
    in_a_row: int = 0

    def after(self, lived_s: float) -> "Deaths":
        """The same with one more death, that of a container that lived for so long."""
        return replace(self, in_a_row=1 if lived_s > FORGIVE_S else self.in_a_row + 1)

    @property
    def are_too_many(self) -> bool:
        """Whether the processor gives up."""
        return self.in_a_row > self.limit

    @property
    def back_off_s(self) -> float:
        """How long after the last death the next container starts."""
        first, most = BACK_OFF_S
        return min(first * 2.0 ** min(self.in_a_row - 1, DOUBLINGS_MAX), most)
