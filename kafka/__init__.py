"""The room of Kafka: every client of a broker, with its errors and time-outs in one place."""
