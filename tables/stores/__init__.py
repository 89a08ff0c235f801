"""Where the files of tables lie: clients of object stores, and what their answers mean."""
