"""The API server's logic over the store: create, replace, patch, server-side apply, delete, with its checks."""

from __future__ import annotations

import base64
import copy
import json
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from local.kubernetes import admission, ownership, patches
from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind, built_in, kinds_of_definition
from local.kubernetes.quotas import exceeded
from local.kubernetes.schemas import schema_of
from local.kubernetes.store import Key, Object, Store, now

PROTECTED_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
PVC_PROTECTION = "kubernetes.io/pvc-protection"
# Which chart or add-on brings the kinds of a group, for the error message.
BROUGHT_BY = {
    "ray.io": "the chart kuberay-operator",
    "cert-manager.io": "the EKS add-on cert-manager",
    "acme.cert-manager.io": "the EKS add-on cert-manager",
    "kubeflow.org": "the HyperPod dependency chart",
    "elbv2.k8s.aws": "the chart aws-load-balancer-controller",
    "workspace.jupyter.org": "the EKS add-on amazon-sagemaker-spaces",
    "kueue.x-k8s.io": "the EKS add-on amazon-sagemaker-hyperpod-taskgovernance",
}


class Api:
    """Requests to one cluster's API server. Thread-safe: every public method holds the store's lock."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = store.lock
        self.settle: Callable[[], None] = lambda: None  # the controllers, run after every change

    # ---- kinds -------------------------------------------------------------------------------------------------

    def kinds(self) -> list[Kind]:
        """Every kind that is served now."""
        with self.lock:
            found = list(built_in().values())
            for crd in self.store.select(kind="CustomResourceDefinition"):
                if "deletionTimestamp" not in crd["metadata"]:
                    found += kinds_of_definition(crd)
            return found

    def kind(self, api_version: str, name: str) -> Kind:
        """The kind of an object. Raises `Rejected` in kubectl's words when no operator has brought it."""
        known = built_in().get((api_version.rpartition("/")[0], name))
        if known is not None and known.api_version == api_version:
            return known
        for kind in self.kinds():
            if kind.kind == name and kind.api_version == api_version:
                return kind
        group = api_version.rpartition("/")[0]
        hint = f"{BROUGHT_BY[group]} brings it and is not installed" if group in BROUGHT_BY else "ensure CRDs are installed first"
        raise Rejected(f'no matches for kind "{name}" in version "{api_version}": {hint}', reason="NotFound")

    def kind_of_resource(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind a URL's last part."""
        return next((k for k in self.kinds() if (k.group, k.version, k.plural) == (group, version, plural)), None)

    # ---- reading -----------------------------------------------------------------------------------------------

    def key(self, kind: Kind, namespace: str | None, name: str) -> Key:
        """The store's key; a namespaced object without a namespace lives in `default`."""
        return Key(kind.group, kind.kind, (namespace or "default") if kind.namespaced else "", name)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """A copy of one object."""
        return self.store.get(self.key(kind, namespace, name))

    def require(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """As `get`; raises `Rejected` (NotFound)."""
        found = self.get(kind, namespace, name)
        if found is None:
            raise Rejected(f'{kind.resource} "{name}" not found', reason="NotFound")
        return found

    # ---- writing -----------------------------------------------------------------------------------------------

    def create(self, value: Object, *, manager: str, dry_run: bool = False) -> Object:
        """POST. Raises `Rejected` (AlreadyExists, Invalid, ...)."""
        with self.lock:
            kind, new = self._prepare(value)
            metadata = new["metadata"]
            if not metadata.get("name") and metadata.get("generateName"):
                metadata["name"] = metadata["generateName"] + _random_suffix()
            key = self.key(kind, metadata.get("namespace"), metadata.get("name", ""))
            if self.store.get(key) is not None:
                raise Rejected(f'{kind.resource} "{key.name}" already exists', reason="AlreadyExists")
            ownership.update(None, new, schema=self._schema(kind), manager=manager, now=now())
            return self._write(kind, key, None, new, dry_run=dry_run)

    def replace(self, value: Object, *, manager: str, status_only: bool = False, dry_run: bool = False) -> Object:
        """PUT of a whole object, or of its status."""
        with self.lock:
            kind, new = self._prepare(value, keep_status=status_only)
            live = self.require(kind, new["metadata"].get("namespace"), new["metadata"].get("name", ""))
            return self._change(kind, live, new, manager=manager, status_only=status_only, dry_run=dry_run)

    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        content: Any,
        *,
        style: str,
        manager: str,
        status_only: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """PATCH with style `merge`, `json` or `strategic`."""
        with self.lock:
            live = self.require(kind, namespace, name)
            new = patches.patched(live, content, style=style, schema=self._schema(kind))
            if (new.get("kind"), new["metadata"].get("name")) != (live["kind"], live["metadata"]["name"]):
                raise Rejected(f"{kind.resource} {name!r}: kind and metadata.name must not change", reason="BadRequest")
            return self._change(kind, live, new, manager=manager, status_only=status_only, dry_run=dry_run)

    def _change(self, kind: Kind, live: Object, new: Object, *, manager: str, status_only: bool, dry_run: bool) -> Object:
        version = new["metadata"].get("resourceVersion")
        if version and version != live["metadata"]["resourceVersion"]:
            text = (
                f'Operation cannot be fulfilled on {kind.resource} "{live["metadata"]["name"]}": the object has been'
                " modified; please apply your changes to the latest version and try again"
            )
            raise Rejected(text, reason="Conflict")
        if status_only:
            kept = copy.deepcopy(live)
            kept["status"] = new.get("status", {})
            new = kept
        else:
            new = self._with_server_fields(new, live)
            ownership.update(live, new, schema=self._schema(kind), manager=manager, now=now())
        key = self.key(kind, live["metadata"].get("namespace"), live["metadata"]["name"])
        return self._write(kind, key, live, new, dry_run=dry_run)

    def apply(self, value: Object, *, manager: str, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply. Raises `Rejected` (Conflict) when another manager owns a field and `force` is not set."""
        with self.lock:
            kind, new = self._prepare(value)
            metadata = new["metadata"]
            if metadata.get("managedFields"):
                raise Rejected("metadata.managedFields must be nil", reason="BadRequest")
            for name in ownership.SERVER_SET_METADATA:
                metadata.pop(name, None)
            key = self.key(kind, metadata.get("namespace"), metadata.get("name", ""))
            live = self.store.get(key)
            shown = f'{kind.resource} "{key.name}"'
            merged = ownership.apply(live, new, schema=self._schema(kind), manager=manager, force=force, now=now(), name=shown)
            return self._write(kind, key, live, merged, dry_run=dry_run)

    def _prepare(self, value: Object, *, keep_status: bool = False) -> tuple[Kind, Object]:
        if not isinstance(value, dict):
            raise Rejected(f"an object was expected, not {json.dumps(value)[:80]}", reason="BadRequest")
        for name in ("apiVersion", "kind"):
            if not isinstance(value.get(name), str) or not value[name]:
                raise Rejected(f'Object "{name}" is missing', reason="BadRequest")
        if not isinstance(value.get("metadata"), dict):
            raise Rejected(f"{value['kind']}: metadata: Required value", reason="BadRequest")
        kind = self.kind(value["apiVersion"], value["kind"])
        new = copy.deepcopy(value)
        if not keep_status:
            new.pop("status", None)
        metadata = new["metadata"]
        if not metadata.get("name") and not metadata.get("generateName"):
            raise Rejected(f"{kind.kind}: metadata.name: Required value: name or generateName is required")
        if kind.namespaced:
            metadata["namespace"] = metadata.get("namespace") or "default"
        elif metadata.get("namespace"):
            text = f'{kind.resource} "{metadata.get("name")}": metadata.namespace: Forbidden: not allowed on this type'
            raise Rejected(text)
        return kind, new

    def _schema(self, kind: Kind) -> Mapping[str, Any]:
        return schema_of(kind.group, kind.kind, kind.schema)

    def _with_server_fields(self, new: Object, live: Object) -> Object:
        kept = copy.deepcopy(new)
        for name in ownership.SERVER_SET_METADATA:
            if name in live["metadata"]:
                kept["metadata"][name] = live["metadata"][name]
            else:
                kept["metadata"].pop(name, None)
        return kept

    def _write(self, kind: Kind, key: Key, live: Object | None, new: Object, *, dry_run: bool) -> Object:
        _fill_defaults(kind, new)
        if live is not None and "status" in live and "status" not in new:
            new["status"] = live["status"]
        found = admission.check(kind, new)
        if live is not None and not found:
            found = list(admission.changes_refused(kind, live, new))
        if found:
            raise Rejected(f'{kind.kind}{f".{kind.group}" if kind.group else ""} "{key.name}" is invalid: {problem}' for problem in found)
        if live is None:
            self._admit_into_namespace(kind, key, new)
            if kind.kind == "Job":
                _choose_pods(key.name, new)
        same_spec = live is not None and _without_metadata(live) == _without_metadata(new)
        metadata = new["metadata"]
        metadata["generation"] = (live["metadata"].get("generation", 1) if live else 0) + (0 if same_spec else 1)
        if dry_run:
            metadata.setdefault("uid", live["metadata"]["uid"] if live else "dry-run")
            metadata.setdefault("creationTimestamp", now())
            metadata.setdefault("resourceVersion", live["metadata"]["resourceVersion"] if live else "")
            return new
        stored = self.store.put(key, new)
        if kind.kind == "Namespace" and live is None:
            self._fill_namespace(key.name)
        self.settle()
        return self.store.get(key) or stored

    def _admit_into_namespace(self, kind: Kind, key: Key, new: Object) -> None:
        if kind.namespaced:
            namespace = self.store.get(Key("", "Namespace", "", key.namespace))
            if namespace is None:
                raise Rejected(f'namespaces "{key.namespace}" not found', reason="NotFound")
            if "deletionTimestamp" in namespace["metadata"]:
                text = (
                    f'{kind.resource} "{key.name}" is forbidden: unable to create new content in namespace {key.namespace}'
                    " because it is being terminated"
                )
                raise Rejected(text, reason="Forbidden")
        if kind.kind == "Pod":
            account = new["spec"].get("serviceAccountName") or "default"
            if self.store.get(Key("", "ServiceAccount", key.namespace, account)) is None:
                text = (
                    f'pods "{key.name}" is forbidden: error looking up service account {key.namespace}/{account}:'
                    f' serviceaccount "{account}" not found'
                )
                raise Rejected(text, reason="Forbidden")
            pods = self.store.select(kind="Pod", namespace=key.namespace)
            over = exceeded(new, pods, self.store.select(kind="ResourceQuota", namespace=key.namespace))
            if over:
                raise Rejected(f'pods "{key.name}" is forbidden: {over}', reason="Forbidden")

    def _fill_namespace(self, name: str) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        self.store.put(Key("", "ServiceAccount", name, "default"), account)
        stored = self.store.get(Key("", "Namespace", "", name))
        if stored is not None:
            stored["status"] = {"phase": "Active"}
            stored["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
            self.store.put(Key("", "Namespace", "", name), stored)

    def set_status(self, key: Key, status: Mapping[str, Any]) -> None:
        """Replace the status of an object, if it still exists (for controllers)."""
        with self.lock:
            live = self.store.get(key)
            if live is not None:
                live["status"] = dict(status)
                self.store.put(key, live)

    # ---- deleting ----------------------------------------------------------------------------------------------

    def delete(self, kind: Kind, namespace: str | None, name: str, *, orphan: bool = False, dry_run: bool = False) -> Object:
        """DELETE. The answer is the object's last state; with finalizers it stays, marked, until they are gone."""
        with self.lock:
            live = self.require(kind, namespace, name)
            key = self.key(kind, namespace, name)
            if kind.kind == "Namespace" and name in PROTECTED_NAMESPACES:
                raise Rejected(f'namespaces "{name}" is forbidden: this namespace may not be deleted', reason="Forbidden")
            if dry_run:
                return live
            if live["metadata"].get("finalizers") or kind.kind == "Namespace":
                if "deletionTimestamp" not in live["metadata"]:
                    live["metadata"]["deletionTimestamp"] = now()
                    live["metadata"]["deletionGracePeriodSeconds"] = 0
                    if kind.kind == "Namespace":
                        live["status"] = {"phase": "Terminating"}
                    live = self.store.put(key, live)
                if kind.kind == "Namespace":
                    self._empty_namespace(name)
            else:
                live = self._remove(key, orphan=orphan) or live
            self.collect()
            self.settle()
            return live

    def _remove(self, key: Key, *, orphan: bool = False) -> Object | None:
        if key.kind == "CustomResourceDefinition":
            definition = self.store.get(key)
            for kind in kinds_of_definition(definition) if definition else ():
                for value in self.store.select(group=kind.group, kind=kind.kind):
                    self._delete_quietly(self.key(kind, value["metadata"].get("namespace"), value["metadata"]["name"]))
        gone = self.store.remove(key)
        if gone is not None and not orphan:
            uid = gone["metadata"]["uid"]
            for other in self.store.all_keys():
                found = self.store.get(other)
                owners = found["metadata"].get("ownerReferences", ()) if found else ()
                if any(owner["uid"] == uid for owner in owners) and not any(owner["uid"] != uid for owner in owners):
                    self._delete_quietly(other)
        return gone

    def _delete_quietly(self, key: Key) -> None:
        value = self.store.get(key)
        if value is None:
            return
        if value["metadata"].get("finalizers"):
            value["metadata"].setdefault("deletionTimestamp", now())
            self.store.put(key, value)
        else:
            self._remove(key)

    def _empty_namespace(self, name: str) -> None:
        keys = [key for key in self.store.all_keys() if key.namespace == name]
        # Owners before what they own, claims after the pods that use them.
        order = {"Pod": 1, "PersistentVolumeClaim": 2, "Event": 3}
        for key in sorted(keys, key=lambda key: (order.get(key.kind, 0), key)):
            self._delete_quietly(key)

    def collect(self) -> None:
        """Remove what waited for a finalizer or for the end of a namespace's content."""
        with self.lock:
            for key in self.store.all_keys():
                value = self.store.get(key)
                if value is None or "deletionTimestamp" not in value["metadata"]:
                    continue
                finalizers = value["metadata"].get("finalizers") or []
                if PVC_PROTECTION in finalizers and not self._claim_in_use(key):
                    finalizers = [name for name in finalizers if name != PVC_PROTECTION]
                    value["metadata"]["finalizers"] = finalizers
                    self.store.put(key, value)
                if not finalizers and key.kind != "Namespace":
                    self._remove(key)
            for key in self.store.all_keys():
                value = self.store.get(key)
                if key.kind == "Namespace" and value is not None and "deletionTimestamp" in value["metadata"]:
                    held = value["metadata"].get("finalizers")
                    if not held and not any(other.namespace == key.name for other in self.store.all_keys()):
                        self._remove(key)

    def _claim_in_use(self, key: Key) -> bool:
        for pod in self.store.select(kind="Pod", namespace=key.namespace):
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for volume in pod["spec"].get("volumes") or ():
                if (volume.get("persistentVolumeClaim") or {}).get("claimName") == key.name:
                    return True
        return False


def _without_metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content for name, content in value.items() if name not in ("metadata", "status")}


def _random_suffix() -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))  # noqa: S311 - no secret; no vowels, as in Kubernetes


def _choose_pods(name: str, job: Object) -> None:
    """As the API server does: a Job's own pods carry its uid, by which `kubectl logs job/...` finds them."""
    spec, uid = job["spec"], job["metadata"].setdefault("uid", str(uuid.uuid4()))
    if spec.get("manualSelector"):
        return
    chosen = {"batch.kubernetes.io/controller-uid": uid}
    spec["selector"] = {"matchLabels": chosen}
    metadata = spec["template"].get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **chosen, "batch.kubernetes.io/job-name": name, "job-name": name, "controller-uid": uid}
    spec["template"]["metadata"] = {**metadata, "labels": labels}


def _fill_defaults(kind: Kind, value: Object) -> None:
    """The few defaults that readers of the objects rely on; kubectl describe would fail without some of them."""
    spec = value.get("spec")
    if kind.kind in ("Deployment", "StatefulSet", "ReplicaSet") and isinstance(spec, dict):
        spec.setdefault("replicas", 1)
    elif kind.kind == "Service" and isinstance(spec, dict):
        spec.setdefault("type", "ClusterIP")
        for port in spec.get("ports") or ():
            if isinstance(port, dict):
                port.setdefault("protocol", "TCP")
    elif kind.kind == "CronJob" and isinstance(spec, dict):
        spec.setdefault("suspend", False)
    elif kind.kind == "Secret":
        value.setdefault("type", "Opaque")
        if isinstance(value.get("stringData"), dict):
            data = {name: base64.b64encode(str(text).encode()).decode() for name, text in value.pop("stringData").items()}
            value["data"] = {**(value.get("data") or {}), **data}
    elif kind.kind == "PersistentVolumeClaim":
        finalizers = value["metadata"].setdefault("finalizers", [])
        if PVC_PROTECTION not in finalizers and "deletionTimestamp" not in value["metadata"]:
            finalizers.append(PVC_PROTECTION)
