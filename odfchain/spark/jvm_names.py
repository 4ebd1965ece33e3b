"""Names of the JVM's classes and methods, looked up once.

Py4J asks the JVM for every name each time it is written, and the JVM looks for `org` or `PythonUtils` as a
class in some three hundred archives before it finds that it is none. Names never change their meaning while a
JVM runs, so they are kept: checking a small query takes 403 calls instead of 656 to 900, and half of the time
(RFC-029).
"""

from __future__ import annotations

from typing import Any


def remember_names(jvm: Any) -> None:
    """From now on `jvm` (PySpark's view of the JVM) asks for packages, classes and methods only once.

    Fields are asked for each time: they may change.
    """
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def remembering(base: Any) -> Any:
        class Remembering(base):  # type: ignore[misc]
            def __getattr__(self, name: str) -> Any:
                found = super().__getattr__(name)
                if isinstance(found, JavaPackage | JavaClass):
                    found.__class__ = package if isinstance(found, JavaPackage) else java_class
                elif not isinstance(found, JavaMember):
                    return found
                self.__dict__[name] = found
                return found

        return Remembering

    package, java_class = remembering(JavaPackage), remembering(JavaClass)
    jvm.__class__ = remembering(JVMView)
