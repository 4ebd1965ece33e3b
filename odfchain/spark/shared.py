"""One session of many in a JVM that was there before this process, and will be after it.

PySpark can be told to use a JVM and a context that exist. What it makes there for itself belongs to this
process: its accumulator (a task reports to the driver whose function it runs, so a driver that has ended is
asked by nobody), its temporary views and its settings. What would stay behind is what Py4J holds for us by
number, in one table for all drivers: our part of it is emptied before we go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def enter(make: Callable[[], SparkSession]) -> SparkSession:
    """A new session in the JVM that PySpark is told of by its environment; `make` makes its first one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # noqa: SLF001 - PySpark has no public way
    jvm = SparkContext._jvm  # noqa: SLF001
    default = SparkSession._get_j_spark_session_class(jvm).getDefaultSession()  # noqa: SLF001
    if default.isDefined() and not default.get().sparkContext().isStopped():
        base = default.get()
        java_context = jvm.JavaSparkContext.fromSparkContext(base.sparkContext())  # type: ignore[union-attr]
        context = SparkContext(conf=SparkConf(_jconf=java_context.getConf()), jsc=java_context)
        first = SparkSession(context, base)
    else:
        first = make()
    session = first.newSession()  # the first one stays the JVM's default: nothing is ever set there
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = session  # noqa: SLF001
    return session


def leave(session: SparkSession | None) -> None:
    """Nothing of this process stays in the JVM; PySpark could connect to another one now."""
    from py4j.finalizer import ThreadSafeFinalizer
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001
    try:
        if session is None or gateway is None:
            raise RuntimeError("it was not entered")
        session._jsparkSession.interruptAll()  # noqa: SLF001 - what still runs is wanted by nobody
        _release(gateway)
    finally:
        ThreadSafeFinalizer.clear_finalizers(clear_all=True)
        if (server := getattr(context, "_accumulatorServer", None)) is not None:
            # the server notices at its next look, up to a second later
            threading.Thread(target=server.shutdown, daemon=True).start()
        if gateway is not None:
            gateway.close(keep_callback_server=True)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def _release(gateway: Any) -> None:
    """Take every object that the JVM holds for us out of its table, by three calls."""
    from py4j.finalizer import ThreadSafeFinalizer
    from py4j.java_gateway import JavaObject

    client = gateway._gateway_client  # noqa: SLF001
    numbers = JavaObject("GATEWAY_SERVER", client).getGateway().getBindings().keySet()
    prefix = f"{client.address}{client.port}"
    ours = [key.removeprefix(prefix) for key in list(ThreadSafeFinalizer.finalizers)]
    waiting = [number for _, number in list(client.finalizer_deque)]
    # "o…" are objects; the table holds the server itself too, under a name
    numbers.removeAll([number for number in (*ours, *waiting) if number.startswith("o")])
