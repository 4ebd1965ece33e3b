"""Metadata: events as frozen dataclasses, their FlatBuffers form, their YAML/JSON form, and data schemas."""
