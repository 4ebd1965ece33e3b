"""Values of the specification: events, schemas, names, times; texts and bytes of them; hashes and ids."""
