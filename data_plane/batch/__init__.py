"""Contains the instructions and the values of a batch, for any writer."""
