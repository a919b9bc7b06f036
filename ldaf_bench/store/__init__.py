"""Artifacts by name: networks, digests, posteriors and integrations, each written whole or not at all."""
