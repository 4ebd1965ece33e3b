"""Storage: objects named by their hash, references moved by compare-and-swap."""
