"""Stands in for the serving image: the same chat API and model ids, with the stand-in's policy in place of a language model."""
