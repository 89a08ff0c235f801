"""The data plane: from the bytes of records to the files of tables, in process and in Spark."""
