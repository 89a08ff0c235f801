"""Implements Hudi tables: base files by our own writers, commits by Hudi's client in a JVM."""
