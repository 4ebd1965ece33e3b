"""Bytes and texts of the specification to values, and back: FlatBuffers, Arrow schemas, YAML and JSON."""
