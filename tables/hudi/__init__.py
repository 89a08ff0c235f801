"""Hudi tables: base files by our own writers, commits by Hudi's write client in a JVM."""
