"""Converts values between types without loss."""
