"""Files of a user to frames of Spark, by the read step that describes them."""
