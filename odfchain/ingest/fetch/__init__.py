"""Getting the bytes of a polling source, once for each state of the source. No Spark, no chain."""
