"""Bytes in places: durable files, objects in folders, stores of every kind, URLs, the one HTTP client."""
