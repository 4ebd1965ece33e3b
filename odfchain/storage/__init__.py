"""Bytes in places: durable files, objects in folders, locations and URLs, the one HTTP client."""
