"""What is done per message, in C where a compiler was there and in Python otherwise."""
