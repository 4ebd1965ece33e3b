"""Pages for people: one file each, without scripts, and the pictures on them."""
