"""`samza-azure executor`: what the pods of executors run on Kubernetes."""

import os


def command() -> None:
    """Run an executor of a Spark cluster on Kubernetes: what its pods run, and nobody by hand.

    A processor with spark.master = "k8s://…" asks Kubernetes for pods whose argument is this word; their environment
    says the rest. SIGPWR decommissions it: it gets no more tasks, ends those that run, hands on what it holds, and
    ends.

    Example: samza-azure executor
    """
    from samza_azure.spark.jvm.daemons import executor

    made = executor(os.environ)
    # Where it puts modules that are sent along: the image's root may be read-only.
    os.chdir(made.environment.get("SPARK_LOCAL_DIRS", ".").partition(",")[0])
    os.execve(made.command[0], [*made.command], dict(made.environment))  # noqa: S606
