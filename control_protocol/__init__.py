"""Defines the language that coordinator and participant speak; it knows neither of them.

Start with ``PROTOCOL.md`` beside this file: the rules. Then read ``identifiers``, ``offsets``,
 ``events`` and ``ports``, in this order.
"""
