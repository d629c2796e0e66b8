"""The JVM and the session: how they start, their settings, and all of Spark that is not promised to anybody.

Promised: the JVM dies with the container. What a release of Spark may change is used in this folder only, and listed in
`interfaces`; methods of Catalyst's plans are listed there, and called where a plan is read.
Not promised: that these interfaces exist in another version. A Spark without that of the watermark is refused.
Start reading at `java.launch`, then `watermark`; for plans at `catalyst`.
"""
