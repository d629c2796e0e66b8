"""The simulator on the Azure SDK: what lies between the processors and the storage changes nothing that happens.

The account, its clients, their policies and transports are those of production; below them is the simulated network.
"""

import asyncio
from random import Random

import pytest

from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from simulator.sdk import SdkAccount
from simulator.vandal import STRANGE
from simulator.world import World, draw

#: Of faults. The SDK takes five times as long as the memory.
FAULT_S, SHORT_S = 20.0, 6.0


@pytest.mark.parametrize(
    ("seed", "fault_s"), [(2, SHORT_S), *(pytest.param(seed, FAULT_S, marks=pytest.mark.long) for seed in (1, 2, 4))]
)
def test_a_seed_has_the_same_history_through_the_sdk_as_on_the_memory_alone(
    seed: int, fault_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """And the SDK finds a code in each answer. It warns of the type of an answer without one, which Azure never gives:
    here those of unchanged blobs were.
    """
    scenario = draw(seed, fault_s=fault_s)
    through_sdk = World(scenario, SdkAccount).play()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("azure.")] == []
    on_memory = World(scenario).play()
    assert through_sdk.history == on_memory.history
    assert through_sdk.seen == on_memory.seen
    assert {"call control.write", "call rows.merge", "call blobs.append"} <= set(through_sdk.seen)


@pytest.mark.long  # a pinned one is played above, and fresh ones on the memory alone
def test_a_fresh_seed_finds_nothing_through_the_sdk() -> None:
    seed = Random().randrange(1 << 31)
    result = World(draw(seed, processors=2, fault_s=FAULT_S), SdkAccount).play()
    assert result.violation is None, f"World(draw({seed}, processors=2, fault_s={FAULT_S}), SdkAccount).play()"


def test_columns_of_any_type_are_read_through_the_sdk_as_from_the_memory_alone() -> None:
    storage = MemoryStorage()
    storage.insert("members", "one", {f"c{number}": value for number, value in enumerate(STRANGE)})

    async def read(account: MemoryAccount | SdkAccount) -> list[tuple[str, str]]:
        (found,) = await account.rows().query("members", timeout=5.0)
        return [(name, repr(value)) for name, value in found.values.items()]

    assert asyncio.run(read(SdkAccount(storage))) == asyncio.run(read(MemoryAccount(storage)))
