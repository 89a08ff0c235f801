"""Does the work per message, in C if a compiler was available and in Python otherwise."""
