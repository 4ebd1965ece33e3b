"""Datasets in the folders of a workspace: their files, settings, and what they say about the present."""
