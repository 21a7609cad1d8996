"""Doctor: everything outside this repository that a deployment needs, looked at and never changed."""
