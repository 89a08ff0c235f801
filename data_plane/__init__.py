"""Contains the data plane: from the bytes of records to the files of tables.

It runs in process and in Spark.
"""
