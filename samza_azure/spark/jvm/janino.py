"""Java's classes by their names, and classes of our own, which are compiled as Spark compiles its generated code."""

import hashlib
from functools import cache
from typing import Any

from py4j.java_gateway import JavaClass

COMPILER = "org.codehaus.janino.SimpleCompiler"


@cache  # there is one JVM
def class_of(jvm: Any, name: str) -> Any:
    """A Java class or a Scala object, by its full name.

    For `jvm.org.apache…`, Java would search all of Spark's jars for a class called `org`, then for `org.apache`: two
    milliseconds of CPU time for each.
    """
    return getattr(jvm, name)


def package_of(source: str) -> str:
    """The package that holds what this source compiles to: another text has another one."""
    return f"samza_azure.of_{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def compiled_in(jvm: Any, name: str, source: str) -> Any:
    """An object of a Java class without arguments: as the training run has compiled it (`precompiled.py`), or now."""
    known = class_of(jvm, f"{package_of(source)}.{name}")
    if isinstance(known, JavaClass):
        return known()
    compiler = class_of(jvm, COMPILER)()
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name).getConstructor(None).newInstance(None)


def compiled_to(jvm: Any, source: str) -> dict[str, bytes]:
    """The classes of a source by their names, in its package."""
    compiler = class_of(jvm, COMPILER)()
    compiler.cook(f"package {package_of(source)};{source}")
    return {str(name): bytes(data) for name, data in compiler.getBytecodes().items()}
