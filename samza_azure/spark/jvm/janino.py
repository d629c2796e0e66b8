"""Java's classes by their names, and classes of our own, which are compiled as Spark compiles its generated code."""

from functools import cache
from typing import Any


@cache  # there is one JVM
def class_of(jvm: Any, name: str) -> Any:
    """A Java class or a Scala object, by its full name.

    For `jvm.org.apache…`, Java would search all of Spark's jars for a class called `org`, then for `org.apache`: two
    milliseconds of CPU time for each.
    """
    return getattr(jvm, name)


def compiled_in(jvm: Any, name: str, source: str) -> Any:
    """An object of a Java class without arguments, compiled from its source."""
    compiler = class_of(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name).getConstructor(None).newInstance(None)
