"""A Java of another major version than the processor's, where this machine has one, and what talks to a JVM."""

import os
import subprocess
from pathlib import Path

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from samza_azure.spark.jvm.daemons import MODULE
from samza_azure.spark.jvm.java import Java, Jvm, find_java

#: Where Debian and others put Java.
INSTALLED = Path("/usr/lib/jvm")


def another_java(*, executes: bool = False) -> Java:
    """Skip the test if there is none, or none that `executes`: that runs executors of a standalone cluster."""
    ours = find_java(os.environ).major
    homes = ["", *(str(each) for each in INSTALLED.glob("*") if (each / "bin" / "java").exists())]
    for each in (find_java({"JAVA_HOME": home, "PATH": ""}) for home in homes):
        if each.major != ours and (not executes or MODULE in modules_of(each)):
            return each
    pytest.skip(f"there is no Java here that can be used for this but {ours}")


def modules_of(java: Java) -> str:
    return subprocess.run([java.binary, "--list-modules"], capture_output=True, text=True, check=True).stdout


def client_of(jvm: Jvm) -> ClientServer:
    """Calls into a JVM that was launched."""
    at = jvm.gateway()
    return ClientServer(
        java_parameters=JavaParameters(port=at.port, auth_token=at.secret),
        python_parameters=PythonParameters(eager_load=False),  # no call comes back; the server's thread would stay
    )
