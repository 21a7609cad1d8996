"""CDK stacks: one file, one stack, one life span. `stacks.wiring.build` puts them in the order that AWS forces."""
