"""Foreign queries in a process without network and without the user's files."""
