"""Platform: what runs on the nodes so that Ray can. Its last resource, the drain, is the first to go."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from config import names
from config.placeholders import PLACEHOLDERS, fill
from k8s import manifests
from stacks import charts
from stacks.allow import Allow
from stacks.functions import function, resource
from stacks.kubernetes import access, addon, chart, existing_cluster, manifest
from stacks.roles import bucket_arn, cluster_arn, pod_principal, role
from stacks.stack import EnvironmentStack, Settings, Shared

DRAIN_GROUP = "hyperpod-rl:drain"
TASK_GOVERNANCE = "amazon-sagemaker-hyperpod-taskgovernance"


class Platform(EnvironmentStack):
    """Add-ons, operators, namespaces, storage claims, network policies and the identities of the workloads."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.PLATFORM, description="Operators, storage claims and identities for Ray")
        cluster = existing_cluster(self)
        identities = self._identities()
        storage_driver = addon(self, "FsxCsiDriver", "aws-fsx-csi-driver")
        addons = [storage_driver, addon(self, "CertManager", "cert-manager"), addon(self, "MetricsServer", "metrics-server")]
        if settings.hyperpod.task_governance:
            addons.append(addon(self, "TaskGovernance", TASK_GOVERNANCE))
        kuberay = chart(
            self,
            "KubeRay",
            cluster=cluster,
            source=charts.kuberay(settings),
            release="kuberay-operator",
            namespace=names.KUBERAY_NAMESPACE,
            values=charts.image_values(settings, "kuberay"),
            wait=True,
        )
        layers = self._objects(cluster, after=(*identities, storage_driver))
        last: list[Construct] = [*addons, *identities, kuberay, *layers]
        # Serving certificates come from cert-manager.
        last += self._ways_in(cluster, certificates=addons[1], namespaces=layers[0])
        self._drain(cluster, last)

    def _ways_in(self, cluster: eks.ICluster, *, certificates: Construct, namespaces: Construct) -> list[Construct]:
        """What stands between people and Ray, as far as the environment has it.

        It comes after the namespaces and so goes before them: while an API that the endpoint operator serves does not answer, Kubernetes
        finishes no namespace ("NamespaceDeletionDiscoveryFailure"), and their deletion would hang.
        """
        settings, made = self.settings, list[Construct]()
        key, before = None, [certificates, namespaces]
        if charts.wants_load_balancers(settings):
            # Few environments have it: not in every synthesis.
            from stacks import remote_access

            controller = remote_access.load_balancer_controller(self, cluster, after=[certificates])
            made.append(controller)
            if (domain := settings.remote_access.domain) is not None:
                made += remote_access.domain_access(self, domain, controller=controller, certificates=certificates)
                key, identity = remote_access.signing(self)
                made.append(identity)
            before += made
        if charts.wants_endpoint_operator(settings):
            made.append(self._endpoint_operator(cluster, key=key, after=before))
        return made

    def _identities(self) -> list[eks.CfnPodIdentityAssociation]:
        """Roles of the workloads, tied to their service accounts before a pod of theirs exists: credentials come at admission."""
        settings = self.settings
        bucket = names.artifact_bucket(settings)
        key, key_to_write = [], []
        if settings.storage.encryption == "kms":
            key = [Allow(["kms:Decrypt", "kms:GenerateDataKey"], [self.read(Shared.STORAGE_KEY)])]
            key_to_write = [Allow(["kms:GenerateDataKey"], [self.read(Shared.STORAGE_KEY)])]
        training = [
            Allow(
                ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                [bucket_arn(self, bucket, f"{names.RUNS_PREFIX}*")],
                why="every object of its own prefix",
            ),
            Allow(["s3:ListBucket"], [bucket_arn(self, bucket)], {"StringLike": {"s3:prefix": [f"{names.RUNS_PREFIX}*"]}}),
        ]
        serving = [
            Allow(["s3:GetObject"], [bucket_arn(self, bucket, f"{names.ADAPTER_PREFIX}*")], why="every adapter"),
            Allow(["s3:ListBucket"], [bucket_arn(self, bucket)], {"StringLike": {"s3:prefix": [f"{names.ADAPTER_PREFIX}*"]}}),
        ]
        releases = [
            Allow(
                ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                [bucket_arn(self, bucket, f"{names.ADAPTER_PREFIX}*")],
                why="every release, whose name comes with it",
            ),
            # Without a prefix: to a role that may list below one only, S3 answers 403 for a missing object, not 404.
            Allow(["s3:ListBucket"], [bucket_arn(self, bucket)]),
        ]
        groups = f"arn:{self.partition}:logs:{self.region}:{self.account}:log-group:{names.hang_log_groups(settings)}*"
        supervisor = [
            Allow(["s3:PutObject"], [bucket_arn(self, bucket, f"{names.RUNS_PREFIX}*/record.json")], why="the record of every run"),
            Allow(["logs:FilterLogEvents"], [groups], why="the group ends with the HyperPod cluster's id, which AWS chooses"),
        ]
        return [
            self._identity("Training", settings.ray_cluster.namespace, names.TRAINING_SERVICE_ACCOUNT, [*training, *key]),
            self._identity("Serving", settings.serving.namespace, names.SERVING_SERVICE_ACCOUNT, [*serving, *key]),
            self._identity("Supervisor", settings.ray_cluster.namespace, names.SUPERVISOR_SERVICE_ACCOUNT, [*supervisor, *key_to_write]),
            self._identity("Releases", settings.ray_cluster.namespace, names.RELEASE_SERVICE_ACCOUNT, [*releases, *key]),
        ]

    def _identity(self, workload: str, namespace: str, service_account: str, allow: list[Allow]) -> eks.CfnPodIdentityAssociation:
        worker = role(
            self, f"{workload}Role", principal=pod_principal(self), allow=allow, description=f"Pods of {namespace}/{service_account}"
        )
        return eks.CfnPodIdentityAssociation(
            self,
            f"{workload}Identity",
            cluster_name=names.eks_cluster(self.settings),
            namespace=namespace,
            service_account=service_account,
            role_arn=worker.role_arn,
        )

    def _objects(self, cluster: eks.ICluster, *, after: tuple[Construct, ...]) -> list[eks.KubernetesManifest]:
        """The `platform` chart of dist/, in three layers, so that each finds on delete what it needs: namespaces, objects, jobs."""
        values = {name: self.read(parameter) for name, parameter in PLACEHOLDERS.items()}
        objects = [fill(found, values) for found in manifests.charts(self.settings)["platform"]]
        kinds = {"Namespaces": ("Namespace",), "Jobs": ("Job",)}
        namespaces = [found for found in objects if found["kind"] in kinds["Namespaces"]]
        jobs = [found for found in objects if found["kind"] in kinds["Jobs"]]
        others = [found for found in objects if found not in namespaces and found not in jobs]
        made: list[eks.KubernetesManifest] = []
        for name, layer in (("Namespaces", namespaces), ("Objects", others), ("Jobs", jobs)):
            if layer:
                needs = (*made[-1:], *(after if name == "Jobs" else ()))
                made.append(manifest(self, name, cluster=cluster, objects=layer, after=needs))
        return made

    def _endpoint_operator(self, cluster: eks.ICluster, *, key: str | None, after: list[Construct]) -> eks.HelmChart:
        domain = self.settings.remote_access.domain
        values: dict[str, object] = {
            "region": self.settings.region,
            "manager": {"enableEndpointsByDefault": "false"},
            "certManager": {"enable": True},
        }
        values |= ({"domain": domain.name} if domain else {}) | ({"kmsKeyArn": key} if key else {})
        if own := charts.own_images(self.settings).get("endpoint-operator"):
            values["image"] = {"override": ":".join(own)}
        return chart(
            self,
            "EndpointOperator",
            cluster=cluster,
            source=charts.endpoint_operator(self.settings),
            release=charts.ENDPOINT_OPERATOR,
            namespace=names.ENDPOINT_OPERATOR_NAMESPACE,
            values=values,
            wait=True,
            after=after,
        )

    def _drain(self, cluster: eks.ICluster, last: list[Construct]) -> None:
        """Everything else comes before it and goes after it."""
        drainer = function(
            self,
            "DrainFunction",
            handler="drain.handler",
            description="Removes Ray objects and load balancers on delete",
            minutes=15,
            in_network=True,
            allow=[Allow(["eks:DescribeCluster"], [cluster_arn(self)])],
        )
        assert drainer.role is not None
        entry = access(self, "DrainAccess", principal=drainer.role.role_arn, groups=[DRAIN_GROUP])
        rights = manifest(self, "DrainRights", cluster=cluster, objects=_drain_rights())
        drain = resource(
            self,
            "Drain",
            kind="Drain",
            token=drainer.function_arn,
            properties={"ClusterName": names.eks_cluster(self.settings)},
            timeout_minutes=16,
        )
        drain.node.add_dependency(entry, rights, *last)


def _drain_rights() -> list[dict[str, object]]:
    """What the drain may do in Kubernetes: find and delete what the launcher started, Ray objects, services and ingresses, nothing else."""
    verbs = ["get", "list", "delete"]
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "hyperpod-rl-drain"},
            "rules": [
                {"apiGroups": ["ray.io"], "resources": ["rayclusters", "rayjobs", "rayservices", "raycronjobs"], "verbs": verbs},
                {"apiGroups": [""], "resources": ["services"], "verbs": verbs},
                # Asks each RayCluster's dashboard whether a job runs.
                {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]},
                {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": verbs},
                {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": verbs},
                {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": verbs},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "hyperpod-rl-drain"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hyperpod-rl-drain"},
            "subjects": [{"kind": "Group", "name": DRAIN_GROUP, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    ]
