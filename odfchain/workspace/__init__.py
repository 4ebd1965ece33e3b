"""Datasets in the folders of a workspace: files, settings, what a chain says of the present, the commit."""
