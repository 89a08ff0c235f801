"""Contains the commands that change what a sink does or holds."""
