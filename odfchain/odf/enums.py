"""Enumerations of the metadata reference; the values are the specification's spellings."""

from __future__ import annotations

from enum import Enum


class DatasetKind(Enum):
    """Type of a dataset (specification "DatasetKind")."""

    ROOT = "Root"
    DERIVATIVE = "Derivative"


class SourceOrdering(Enum):
    """Order in which a `FilesGlob` source takes its files (specification "FetchStep::FilesGlob")."""

    BY_EVENT_TIME = "ByEventTime"
    BY_NAME = "ByName"


class CompressionFormat(Enum):
    """Archive formats of a `Decompress` step (specification "PrepStep::Decompress")."""

    GZIP = "Gzip"
    ZIP = "Zip"


class MqttQos(Enum):
    """Quality of service of an MQTT subscription (ODF 0.35 and later)."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class TimeUnit(Enum):
    """Resolution of a time, timestamp or duration type (ODF 0.37 and later)."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


class OperationType(Enum):
    """Effect on history, numbered as in the `op` column ("Representation of Retractions and Corrections")."""

    APPEND = "+A"
    RETRACT = "-R"
    CORRECT_FROM = "-C"
    CORRECT_TO = "+C"

    @property
    def code(self) -> int:
        """The number stored in the `op` column."""
        return tuple(OperationType).index(self)

    @classmethod
    def from_code(cls, code: int) -> OperationType:
        """The operation with this number, or `ValueError`."""
        for op in cls:
            if op.code == code:
                return op
        raise ValueError(f"{code} is not an operation type")


APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = (op.code for op in OperationType)
"""The codes by themselves."""
TAKES_BACK = (RETRACT, CORRECT_FROM)
"""Codes of the operations that take a row out of force; the others put one in force."""
