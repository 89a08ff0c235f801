"""Contains what a sink file says: its settings, how they are read, checked and described."""
