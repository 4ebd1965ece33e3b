"""Values of the specification as frozen dataclasses: events, schemas, times, formats."""
