"""Review: what a change of this project does to an environment, before anybody deploys it.

`sides` hold what two revisions make (synthesis.py makes them), `compare` puts them beside each other, `show` says it.
"""
