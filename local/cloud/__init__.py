"""AWS on one machine: an endpoint that the unmodified CDK CLI, AWS CLI and SDKs talk to.

ministack (MIT, version pinned in requirements.in) answers most services. Beside it stand a provider for every
CloudFormation resource type that it lacks, driven by the resource schemas that AWS publishes, the service calls of
SageMaker HyperPod, FSx, Managed Prometheus, Managed Grafana, Service Quotas, Price List and EKS Pod Identity, the
refusals of those services, fault switches, and a listing of everything that exists.
"""

ACCOUNT = "000000000000"
REGION = "us-west-2"
# Any text does: the endpoint is on the loopback interface and checks no signature.
SECRET = "local"  # noqa: S105
# In the user agent of who waits for a stack: `DescribeStacks` is answered when the stack has settled, as for the CDK CLI.
WAITS = "hyperpod-rl-waits"
