"""`samza-azure master`: the master of a Spark cluster, for those who have none."""

import os
import socket
from typing import Annotated

import typer

from samza_azure.commands.terminal import say


def command(
    host: Annotated[
        str | None, typer.Option(help="The address at which workers and processors reach it, instead of the host's.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port of the cluster.", min=1, max=65535)] = 7077,
    page: Annotated[int, typer.Option(help="The port of Spark's own web page; 0: any free one.", min=0)] = 0,
) -> None:
    """Run the master of a Spark cluster, in the foreground, for those who have no cluster.

    SIGTERM and Ctrl-C end it. Who reaches its port may run programs on the workers. `SPARK_DAEMON_JAVA_OPTS` counts as
    with Spark's own scripts; who lists the processes of the machine sees it.

    Example: samza-azure master --host 10.0.0.4
    """
    from samza_azure.spark.jvm.daemons import master

    chosen = host or socket.getfqdn()
    made = master(chosen, port, page, os.environ)
    say(f"The cluster is spark://{chosen}:{port}: write it as spark.master into job files; and for each worker run:")
    say(f"samza-azure worker --master spark://{chosen}:{port}")
    os.execve(made.command[0], [*made.command], dict(made.environment))  # noqa: S606
