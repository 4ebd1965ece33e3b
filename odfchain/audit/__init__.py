"""The checks of `verify`, replays and reports; what datasets and single records were made of."""
