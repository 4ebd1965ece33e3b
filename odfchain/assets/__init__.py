"""Asset locks: where the files are that STAC Items name, and what tells whether they are still the same."""
