"""A job that runs for minutes each night, on new machines: nothing of the earlier nights piles up in the table."""

from samza_azure.group.rows import MEMBERS
from tests.sim.test_ending import Story, played

NIGHTS = 3


def test_rows_of_earlier_nights_do_not_pile_up() -> None:
    """Each night left the rows of its processors, since no leader watched them for an hour."""

    class Nightly(Story):
        async def _play(self) -> None:
            for night in range(NIGHTS):
                names = [f"night{night}-{number}" for number in range(3)]
                for name in names:
                    self.start(name)
                await self._until("all is well", lambda: self.ledger.control is not None and self.unhealed() is None)
                await self._wait(20.0)
                rows = {row.key for row in self.ledger.query(MEMBERS)}
                before = {f"night{night - 1}-{number}" for number in range(3)}
                assert rows <= before | {*names}, "those of last night were marked dead tonight"
                for name in names:
                    self.lives[name].crash()
                await self._wait(24 * 3600.0)

    played(Nightly(1))
