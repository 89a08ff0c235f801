"""Contains every client of a broker, with its errors and time-outs."""
