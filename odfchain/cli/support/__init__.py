"""What several commands share; a command is a file of the folder above."""
