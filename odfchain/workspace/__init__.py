"""The folder of a workspace: its datasets, settings, points, the present by the chain, the commit."""
