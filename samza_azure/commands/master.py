"""`samza-azure master`: the master of a Spark cluster, for those who have none."""

import os
import socket
from typing import Annotated

import typer

from samza_azure.commands.terminal import say
from samza_azure.errors import ConfigError
from samza_azure.host.loopback import is_loopback


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

    chosen = host or _own_name()
    made = master(chosen, port, page, os.environ)
    say(f"The cluster is spark://{chosen}:{port}: write it as spark.master into job files; and for each worker run:")
    say(f"samza-azure worker --master spark://{chosen}:{port}")
    os.execve(made.command[0], [*made.command], dict(made.environment))  # noqa: S606


def _own_name() -> str:
    """This machine's name, if others can reach it by that. Raise ConfigError."""
    name = socket.gethostname()  # and not its full one: a server of names that is away would take many seconds
    try:
        addresses = {str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise ConfigError(
            f"This machine's name {name} has no address ({error.strerror}). Add --host ADDRESS."
        ) from error
    if all(map(is_loopback, addresses)):
        raise ConfigError(
            f"This machine's name {name} is {', '.join(sorted(addresses))}, where no other machine reaches it. "
            "Add --host ADDRESS, for a trial on this machine alone --host 127.0.0.1."
        )
    return name
