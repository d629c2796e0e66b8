"""The JVM and the session: how they start, what they are set to, and what is reached there by private names.

Promised: the JVM dies with the container. Each private interface of Spark's is in one file, and a test pins it.
Not promised: that they are there in another version; a Spark without the watermark's is refused.
Start reading at `java.launch`, then `watermark`.
"""
