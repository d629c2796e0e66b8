"""What every container does once its pipeline is analysed: report the plan, then carry out commands until Exit."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from samza_azure.config import Config
from samza_azure.messages import Alive, Ready
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.tasks.account import blobs, hints, positions
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.gate_files import PermitFile
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.secrets import Secrets
from samza_azure.tasks.tasks import NoWarmUp, Tasks, WarmUp
from samza_azure.user_code import version_of_code

log = logging.getLogger(__name__)


def serve(
    config: Config,
    directory: Path,
    channel: Channel,
    analyse: Callable[[], Pipeline],
    *,
    context_of: Callable[..., ContainerContext] = ContainerContext,
    alive: Callable[[], Alive] = Alive,
    warm_up: Callable[..., WarmUp] = NoWarmUp,
) -> None:
    """Analyse the pipeline and run its tasks. `alive` shows that what they run on answers; `warm_up` prepares it."""
    permit = PermitFile(directory / "permit")
    pipeline = analyse()

    def changed() -> None:
        channel.commands.put(None)

    board = HintBoard(hints(), directory / "hints", changed)
    board.start()
    context = context_of(
        config=config,
        pipeline=pipeline,
        blobs=blobs(),
        positions=positions(),
        hints=board,
        directory=directory,
        may_append=permit.holds,
        clean=Secrets(config).removed_from,
        changed=changed,
    )
    described = {
        name: {fact: context.clean(value) for fact, value in facts.items()}  # a condition may quote a setting
        for name, facts in pipeline.plan.described.items()
    }
    channel.tell(Ready(replace(pipeline.plan, described=described, code=version_of_code())))
    log.info("Ready: %s", ", ".join(pipeline.plan.tasks()))
    Tasks(channel, context, permit, alive, warm_up(context)).run()
