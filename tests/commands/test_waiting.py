"""What `drain` answers at moments that a real group passes too quickly. On the account in memory."""

import asyncio
from dataclasses import replace

import pytest

from samza_azure.commands.ask import ask_cancel
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, Failure, RunPhase
from samza_azure.group.notification import DrainNotification
from samza_azure.messages import DrainStep
from samza_azure.storage.memory import MemoryAccount

FREEZE = DrainNotification("u", "run", step=DrainStep.FREEZE, history=("FREEZE",))
FLUSH = replace(FREEZE, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH"))
RUNNING = Control("g", run_id="run", phase=RunPhase.RUNNING)
FAILED = replace(RUNNING, phase=RunPhase.FAILED, failure=Failure("clean", "clean-0", "no", ""))


def test_a_drain_that_failed_while_it_flushed_is_not_cancelled_because_the_next_start_resumes_it() -> None:
    rows = MemoryAccount().rows()
    said = r"Run run failed while it flushed: its drain can no longer be cancelled\. The next start resumes the flush\."
    with pytest.raises(ConfigError, match=said):
        asyncio.run(ask_cancel(replace(FAILED, drain=FLUSH), rows, ""))
    assert asyncio.run(ask_cancel(replace(FAILED, drain=FREEZE), rows, "")).key
