"""Getting data into root datasets: check, read, merge, write, commit."""
