"""Opens what commands look at: tables and Kafka."""
