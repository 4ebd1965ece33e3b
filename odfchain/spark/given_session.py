"""A session that somebody else has made, such as `spark-submit`: what is recorded is computed beside it.

What decides what is recorded is set in a session of our own in the same Spark (`session_beside`), so the
user's keeps its settings. What cannot be set there is the locale and the time zone of Java, which was started
with them: those are looked at, and other ones are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.spark.plan_walk import jvm_of
from odfchain.spark.session import SAME_EVERYWHERE, session_beside
from odfchain.spark.session_kind import is_local, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.spark.executor_files import ExecutorFiles

_ON_DRIVER = "spark.driver.extraJavaOptions"
_ON_EXECUTORS = ("spark.executor.defaultJavaOptions", "spark.executor.extraJavaOptions")


class GivenSession:
    """A session beside one that is given; what `SparkEngine` is where Spark is started here."""

    def __init__(self, given: SparkSession, files: ExecutorFiles | None) -> None:
        self._given = given
        self._files = files
        self._made: SparkSession | None = None

    started = True

    @property
    def session(self) -> SparkSession:
        """The session beside, made now if need be."""
        if self._made is None:
            self._made = session_beside(self._given, self._files)
        return self._made

    def begin(self) -> None:
        """Nothing: Spark has started."""

    def close(self) -> None:
        """Nothing: who has made the session ends it."""
        self._made = None


def check_given(session: Any) -> None:
    """What is recorded in this session's Spark does not depend on where it runs.

    Of Spark Connect nothing is known of the server's Java.

    Raises:
        UsageError: it is no session, or has ended; or Java has another locale or time zone.
    """
    if not hasattr(session, "newSession"):
        raise UsageError(f"a {type(session).__name__} is no session of Spark", hint="give a SparkSession")
    if is_remote(session):
        return
    if session.sparkContext._jsc is None or session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - no public way
        raise UsageError("the session of Spark has ended", hint="give one that runs")
    java = jvm_of(session).java.util
    locale, zone = java.Locale.getDefault(), java.TimeZone.getDefault()
    wrong = []
    if str(locale.toString()) != "en_US":
        wrong.append((_ON_DRIVER, f"the locale of the driver's Java is {locale.toString()}"))
    if not zone.hasSameRules(java.TimeZone.getTimeZone("UTC")):
        wrong.append((_ON_DRIVER, f"the time zone of the driver's Java is {zone.getID()}"))
    if not is_local(session):
        conf = session.sparkContext.getConf()
        given = " ".join(conf.get(name, "") for name in _ON_EXECUTORS).split()
        absent = [option for option in SAME_EVERYWHERE.split() if option not in given]
        if absent:
            wrong.append((_ON_EXECUTORS[-1], f"{_ON_EXECUTORS[-1]} has no {' '.join(absent)}"))
    if wrong:
        names = dict.fromkeys(name for name, _ in wrong)
        raise UsageError(
            f"what is recorded would depend on where Spark runs: {'; '.join(text for _, text in wrong)}",
            hint="start Spark with " + " ".join(f'--conf "{name}={SAME_EVERYWHERE}"' for name in names),
        )
