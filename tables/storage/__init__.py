"""Contains the clients of object stores and interprets their answers."""
