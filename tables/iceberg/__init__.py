"""The room of Apache Iceberg: read, commit, create, grow and keep its tables."""
