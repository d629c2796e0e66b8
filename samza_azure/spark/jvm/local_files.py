"""Write local files without a process for each: Spark's checkpoints, and the files of its state.

Without its native library Hadoop starts `chmod` for each file and folder that it creates, and for each file's checksum:
four processes for a batch without state, twelve for a join. A checkpoint is a cache here, so it needs neither:
`LocalFiles` creates files and folders as Java does, with the permissions of the process's umask. Spark also copies the
tables of RocksDB, from the checkpoint into RocksDB's own folder when it loads a state, and back for a snapshot: here
they get a second name instead, so a task with a large state runs sooner, and its tables are on the disk once.
It replaces the file system that Hadoop's cache holds for the scheme `file`; everything else is Hadoop's own.
`tests/spark/test_private_interfaces.py` pins the private interfaces that this uses.
"""

import logging

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import compiled

log = logging.getLogger(__name__)

NAME = "LocalFiles"
#: The files of RocksDB with the rows. RocksDB writes each once, and deletes it.
TABLE = ".sst"
SOURCE = f"""
public class {NAME} extends org.apache.hadoop.fs.LocalFileSystem {{
    public org.apache.hadoop.fs.FSDataOutputStream create(
        org.apache.hadoop.fs.Path path, boolean overwrite, int buffer, short replication, long block,
        org.apache.hadoop.util.Progressable progress
    ) throws java.io.IOException {{
        java.io.File file = pathToFile(path);
        if (!overwrite && file.exists()) {{
            throw new org.apache.hadoop.fs.FileAlreadyExistsException("File already exists: " + path);
        }}
        mkdirs(path.getParent(), null);
        return new org.apache.hadoop.fs.FSDataOutputStream(
            new java.io.BufferedOutputStream(new java.io.FileOutputStream(file), buffer), statistics
        );
    }}
    public boolean mkdirs(org.apache.hadoop.fs.Path path) throws java.io.IOException {{
        return mkdirs(path, null);
    }}
    public boolean mkdirs(org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
            throws java.io.IOException {{
        java.nio.file.Files.createDirectories(
            pathToFile(path).toPath(), new java.nio.file.attribute.FileAttribute[0]
        );
        return true;
    }}
    public void copyToLocalFile(
        boolean moves, org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to
    ) throws java.io.IOException {{
        if (moves || !linked(from, to)) {{
            super.copyToLocalFile(moves, from, to);
        }}
    }}
    public void copyFromLocalFile(
        boolean moves, org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to
    ) throws java.io.IOException {{
        if (moves || !linked(from, to)) {{
            super.copyFromLocalFile(moves, from, to);
        }}
    }}
    public void install(org.apache.hadoop.conf.Configuration settings) throws Exception {{
        java.net.URI root = java.net.URI.create("file:///");
        initialize(root, settings);
        java.lang.reflect.Method put = org.apache.hadoop.fs.FileSystem.class.getDeclaredMethod(
            "addFileSystemForTesting", new Class[] {{
                java.net.URI.class, org.apache.hadoop.conf.Configuration.class, org.apache.hadoop.fs.FileSystem.class
            }}
        );
        put.setAccessible(true);
        put.invoke(null, new Object[] {{root, settings, this}});
    }}
    private boolean linked(org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to) throws java.io.IOException {{
        if (!from.getName().endsWith("{TABLE}")) {{
            return false;
        }}
        mkdirs(to.getParent());
        java.nio.file.Path target = pathToFile(to).toPath();
        java.nio.file.Files.deleteIfExists(target);  // to write into it would change all of its names
        try {{
            java.nio.file.Files.createLink(target, pathToFile(from).toPath());
            return true;
        }} catch (java.nio.file.FileAlreadyExistsException error) {{  // a copy would be written into it
            throw error;
        }} catch (java.io.IOException error) {{  // on another disk, as a rule
            return false;
        }} catch (UnsupportedOperationException error) {{
            return false;
        }}
    }}
}}
"""


def install(spark: SparkSession) -> None:
    """Install `LocalFiles` in this JVM. A failure only costs time."""
    try:
        compiled(spark, NAME, SOURCE).install(spark.sparkContext._jsc.hadoopConfiguration())
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.info("Local files are written as Hadoop does it: %s", error)
