"""Reads, commits to, creates, changes and maintains tables of Apache Iceberg."""
