"""What the services refuse beyond the schemas: one small named function for each rule, in AWS's kind of words."""

from local.cloud.rules import ec2, eks, fsx, hyperpod
from local.cloud.rules.asking import Action, judged_types, refusals

__all__ = ["Action", "ec2", "eks", "fsx", "hyperpod", "judged_types", "refusals"]
