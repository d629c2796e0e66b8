"""Close what Spark leaves open of each Python process that runs a source.

To accept the connection of such a process, Spark 4.3 opens a selector (`PythonWorkerFactory.createSimpleWorker`), and
never closes it. Java does not do it either, and keeps the closed server socket for it: three file descriptors for each
source of each task that starts.
`Selectors` hands out Java's own selectors. It remembers those that this method opens, and closes them when their socket
is closed, at the latest when the next but one process starts.
`tests/spark/test_tasks.py` counts the descriptors.
"""

import logging

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import compiled, java_class

log = logging.getLogger(__name__)

NAME = "Selectors"
SPI = "java.nio.channels.spi"
SOURCE = f"""
public class {NAME} extends {SPI}.SelectorProvider {{
    private final {SPI}.SelectorProvider own = {SPI}.SelectorProvider.provider();
    private final java.util.List open = new java.util.ArrayList();

    public {SPI}.AbstractSelector openSelector() throws java.io.IOException {{
        {SPI}.AbstractSelector selector = own.openSelector();
        if (isOfSource()) remember(selector);
        return selector;
    }}

    private synchronized void remember(java.nio.channels.Selector selector) {{
        for (int i = open.size() - 1; i >= 0; i--) {{
            java.nio.channels.Selector each = (java.nio.channels.Selector) open.get(i);
            if (!hasServed(each)) continue;
            open.remove(i);
            try {{
                each.close();
            }} catch (java.io.IOException error) {{}}  // of a source that has ended
        }}
        open.add(selector);
    }}

    private boolean hasServed(java.nio.channels.Selector selector) {{
        if (!selector.isOpen()) return true;
        java.util.Iterator keys = selector.keys().iterator();
        return keys.hasNext() && !((java.nio.channels.SelectionKey) keys.next()).channel().isOpen();
    }}

    private boolean isOfSource() {{
        StackTraceElement[] calls = new Throwable().getStackTrace();
        for (int i = 0; i < calls.length && i < 8; i++) {{
            if (calls[i].getMethodName().equals("createSimpleWorker")) return true;
        }}
        return false;
    }}

    public java.nio.channels.DatagramChannel openDatagramChannel() throws java.io.IOException {{
        return own.openDatagramChannel();
    }}

    public java.nio.channels.DatagramChannel openDatagramChannel(java.net.ProtocolFamily family)
            throws java.io.IOException {{
        return own.openDatagramChannel(family);
    }}

    public java.nio.channels.Pipe openPipe() throws java.io.IOException {{
        return own.openPipe();
    }}

    public java.nio.channels.ServerSocketChannel openServerSocketChannel() throws java.io.IOException {{
        return own.openServerSocketChannel();
    }}

    public java.nio.channels.ServerSocketChannel openServerSocketChannel(java.net.ProtocolFamily family)
            throws java.io.IOException {{
        return own.openServerSocketChannel(family);
    }}

    public java.nio.channels.SocketChannel openSocketChannel() throws java.io.IOException {{
        return own.openSocketChannel();
    }}

    public java.nio.channels.SocketChannel openSocketChannel(java.net.ProtocolFamily family)
            throws java.io.IOException {{
        return own.openSocketChannel(family);
    }}

    public java.nio.channels.Channel inheritedChannel() throws java.io.IOException {{
        return own.inheritedChannel();
    }}
}}
"""


def install(spark: SparkSession) -> None:
    """Install `Selectors` in this JVM. A failure costs descriptors."""
    try:
        classes = java_class(spark, "java.lang.Class")
        field = classes.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        field.setAccessible(True)
        unsafe = field.get(None)
        held = classes.forName(f"{SPI}.SelectorProvider$Holder").getDeclaredField("INSTANCE")  # final, so not by `set`
        selectors = compiled(spark, NAME, SOURCE)
        unsafe.putObject(unsafe.staticFieldBase(held), unsafe.staticFieldOffset(held), selectors)
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.info("Spark leaves three descriptors open for each source that starts: %s", error)
