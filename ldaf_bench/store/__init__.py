"""Artifacts by name: networks, digests, posteriors and integrations, in a folder or at a URI, whole or not at all."""
