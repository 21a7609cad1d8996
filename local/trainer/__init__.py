"""A small trainer that stands in for SkyRL on a machine without GPUs: same overrides, log, files; its own honest learning."""
