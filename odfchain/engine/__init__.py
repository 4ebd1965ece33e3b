"""Engines: what executes the transformations of derivative datasets, here on Spark or elsewhere by gRPC."""
