"""Counts what a sink does, and gives it to Prometheus and OpenTelemetry."""
