"""Where the files of tables lie: clients of object stores, and the meaning of their answers."""
