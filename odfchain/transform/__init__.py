"""The coordinator's side of derivative datasets: which step is next, what it brought, and its commit."""
