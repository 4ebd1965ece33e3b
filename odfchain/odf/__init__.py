"""Values of the specification: events, schemas, names, hashes; bytes and texts to them, and back."""
