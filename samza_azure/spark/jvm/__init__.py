"""The JVM and the session: how they start, their settings, and the private interfaces of Spark that are used.

Promised: the JVM dies with the container. Each private interface of Spark is used in one file, and a test pins it.
Not promised: that these interfaces exist in another version. A Spark without that of the watermark is refused.
Start reading at `java.launch`, then `watermark`.
"""
