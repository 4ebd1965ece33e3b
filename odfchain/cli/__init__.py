"""The command line: parses, calls `api`, prints, exits; one file for each group of commands."""
