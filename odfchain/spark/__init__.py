"""The Spark layer: Java, the session, reading, parsing, and the stage that writes slices."""
