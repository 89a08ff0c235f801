"""Reads records whose writer's schema is in a registry: framings, the registries, their schemas."""
