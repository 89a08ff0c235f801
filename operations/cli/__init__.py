"""Contains the commands of ``headgate``, with their options."""
