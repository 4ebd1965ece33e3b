"""The HTTP stack: where a request may go, what a header says, connections, tries."""
