"""What a reader of a bad environment file sees."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.environment import DOCUMENTATION_ACCOUNT
from config.load import ENVIRONMENTS, load, names, parse
from config.problems import Problem, Refused

REFERENCE = (ENVIRONMENTS / "reference.yaml").read_text()


def refused(text: str) -> list[str]:
    with pytest.raises(Refused) as caught:
        parse(text, where="mine.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("name", names())
def test_every_environment_of_the_project_loads(name: str) -> None:
    assert load(name).name == name


def test_reference_is_the_article_topology() -> None:
    env = load("reference")
    assert (env.head.instance_type, env.head.count) == ("ml.r5d.16xlarge", 1)
    assert (env.workers.instance_type, env.workers.count, env.training_gpus) == ("ml.g7e.12xlarge", 3, 6)
    assert env.ray_cluster.name == "skyrl-visgym"
    assert env.storage.file_system.mount_path == "/shared"
    assert env.groups("system")[0].count == 2
    assert env.account == DOCUMENTATION_ACCOUNT


def test_account_can_be_given_beside_the_file() -> None:
    assert load("reference", account="123456789012").account == "123456789012"
    with pytest.raises(Refused, match="account"):
        load("reference", account="12")


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        ("network:", "netwrok:", "netwrok", "did you mean `network`"),
        ("    count: 3", "    count: -3", "instance_groups[2].count", "greater than or equal to 0"),
        ("    count: 3", '    count: "3"', "instance_groups[2].count", "without quotes"),
        ("    count: 3", "    count: 2.5", "instance_groups[2].count", "2.5"),
        ("    count: 3", "    count: true", "instance_groups[2].count", "true"),
        ("    count: 1", "    count: 2", "instance_groups[1].count", "one head"),
        ("ml.g7e.12xlarge", "ml.m5.4xlarge", "instance_groups[2].instance_type", "ml.g7e.12xlarge"),
        ("ml.g7e.12xlarge", "ml.g9.12xlarge", "instance_groups[2].instance_type", "figures"),
        ("ml.g7e.12xlarge", "g7e.12xlarge", "instance_groups[2].instance_type", "ml."),
        ("role: workers", "role: worker", "instance_groups[2].role", "'workers'"),
        ("name: head", "name: workers", "instance_groups", "2 groups have this name"),
        ("role: head", "role: system", "instance_groups", "exactly one group has role head"),
        ("capacity_gib: 4800", "capacity_gib: 5000", "storage.file_system.capacity_gib", "set 4800"),
        ("throughput_mbps_per_tib: 250", "throughput_mbps_per_tib: 300", "storage.file_system.throughput_mbps_per_tib", "125"),
        ("[usw2-az2, usw2-az1]", "[usw2-az2, usw2-az2]", "network.availability_zone_ids", "two different zones"),
        ("[usw2-az2, usw2-az1]", "[us-west-2a, us-west-2b]", "network.availability_zone_ids[0]", "us-west-2a"),
        ("region: us-west-2", "region: us-west-2\naccount: '000000000000'", "account", "local"),
        ("region: us-west-2", "region: mars", "region", "mars"),
        ("region: us-west-2", "region: us-west-2\nversions: '1999'", "versions", "2026.11"),
        ("region: us-west-2", "region: us-west-2\nregion: us-east-1", "mine.yaml", "lines 3 and 4"),
        ("name: skyrl-visgym", "name: " + "x" * 60, "ray_cluster.name", "1 to 53"),
        ("namespace: training", "namespace: training\n  worker_cpus: 48", "ray_cluster.worker_cpus", "set at most 46"),
        ("    deep_health_checks: [InstanceStress]", "    deep_health_checks: [InstanceStress]\n    taints: [{key: mine}]",
         "instance_groups[2].taints", "drop one of the two"),
        ("  removal: retain", "  removal: destroy\ntermination_protection: true", "storage.removal", "backup or retain"),
        ("capacity_gib: 4800", "capacity_gib: 4800\n    export_to_s3: true\n    backup_retention_days: 7",
         "storage.file_system.backup_retention_days", "exports to S3"),
        ("project: hyperpod-rl", "project: 7", "tags.project", "quotes"),
    ],
)  # fmt: skip
def test_one_fault_gives_its_field_and_its_fix(old: str, new: str, field: str, says: str) -> None:
    assert old in REFERENCE
    lines = refused(REFERENCE.replace(old, new, 1))
    assert any(line.startswith(field) and says in line for line in lines), lines
    assert all(line.endswith(".") and "\n" not in line for line in lines), lines


def test_all_faults_are_said_at_once() -> None:
    text = REFERENCE.replace("network:", "netwrok:").replace("count: 3", "count: -1").replace("role: head", "role: haed")
    assert len(refused(text)) >= 4  # the unknown key, the key that is then missing, the count and the role


def test_all_cross_field_faults_are_said_at_once() -> None:
    text = REFERENCE.replace("ml.g7e.12xlarge", "ml.m5.4xlarge").replace("capacity_gib: 4800", "capacity_gib: 5000")
    fields = {line.split(" ")[0] for line in refused(text)}
    assert {"instance_groups[2].instance_type", "storage.file_system.capacity_gib"} <= fields


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("a: [", "not valid YAML: line 1"),
        ("- 1\n", "a mapping of keys"),
        ("just words", "a mapping of keys"),
        ("\t- x", "not valid YAML"),
        ("a: &a [*a]", "mine.yaml"),
        ("name: x\nx: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("[" * 5000, "mine.yaml"),
    ],
)
def test_text_that_is_no_environment(text: str, says: str) -> None:
    assert any(says in line for line in refused(text))


@pytest.mark.parametrize("name", ["refrence", "", " ", "no/such/file.yaml", "x" * 5000, "a\0b", "../reference"])
def test_an_environment_that_is_not_there(name: str) -> None:
    with pytest.raises(Refused) as caught:
        load(name)
    assert "reference" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(Refused, match="UTF-8"):
        load(str(binary))
    with pytest.raises(Refused, match="no such file"):
        load(f"{tmp_path}/")
    huge = tmp_path / "huge.yaml"
    huge.write_text("# " + "x" * (1 << 20) + "\n")
    with pytest.raises(Refused, match="1 MiB"):
        load(str(huge))


def test_a_type_outside_the_table_needs_its_figures() -> None:
    figures = "\n    figures: {vcpus: 192, memory_gib: 2048, gpus: 8, gpu_memory_gb: 180, source: a page}"
    env = parse(REFERENCE.replace("ml.g7e.12xlarge", "ml.p6.48xlarge" + figures + "  #"))
    assert env.training_gpus == 24
    assert env.workers.instance.certainty == "given"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(data=documents)
def test_no_document_ends_in_anything_but_a_refusal(data: object) -> None:
    with pytest.raises(Refused):
        parse(yaml.safe_dump(data))


@given(key=st.sampled_from(list(yaml.safe_load(REFERENCE))), value=documents)
def test_any_value_at_any_key_is_taken_or_refused(key: str, value: object) -> None:
    data = yaml.safe_load(REFERENCE)
    data[key] = value
    with contextlib.suppress(Refused):  # anything else that it raises fails the test
        assert parse(yaml.safe_dump(data)).name


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    "value",
    ['!!int "abc"', "!!float abc", "!!bool abc", "!!timestamp abc", "!!map [1]", "9" * 5000, '"\\ud800"', "!!int 010", "!!int 1:1",
     "&a [*a]", "!!binary \"a\"", "{? !!timestamp 2024-01-01 : 1}", "[" * 3000],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_yaml_that_its_reader_trips_over_is_one_sentence(value: str) -> None:
    (sentence,) = refused(f"{REFERENCE}\nfoo: {value}\n")
    assert sentence.startswith("mine.yaml: ")
    assert "\n" not in sentence


def test_half_a_surrogate_pair_as_a_key_is_refused() -> None:
    assert "surrogate" in refused(f'{REFERENCE}\n"\\ud800": 1\n')[0]


@pytest.mark.parametrize("text", [LAUGHS, LAUGHS + "m: {<<: *a11}\n"])
def test_aliases_that_grow_without_limit_are_refused_at_once(text: str) -> None:
    before = time.monotonic()
    (sentence,) = refused(text)
    assert "aliases" in sentence
    assert time.monotonic() - before < 5  # 9**12 items are never made


def test_an_alias_is_fine_in_itself() -> None:
    text = REFERENCE.replace("name: reference", "name: &it reference", 1).replace("namespace: training", "namespace: *it", 1)
    assert parse(text).ray_cluster.namespace == "reference"


@pytest.mark.parametrize("number", ["010", "1:1", "0x3", "0b11", "1_0"])
def test_a_count_is_written_in_decimal(number: str) -> None:
    text = REFERENCE.replace("count: 3", f"count: {number}")
    assert text != REFERENCE
    (sentence,) = refused(text)
    assert "count" in sentence
    assert f'"{number}"' in sentence


def test_the_home_folder_of_nobody() -> None:
    with pytest.raises(Refused, match="there is no such file"):
        load("~no-such-user-here/x.yaml")


def test_a_sentence_stays_on_its_line() -> None:
    said = str(Problem("a\nb", "c\rd\x1b[2J\u2028\ud800", "no\ngood", "mend\nit"))
    assert said == "a\\nb = c\\rd\\x1b[2J\\u2028\\ud800: no\\ngood; mend\\nit."
    assert said.isprintable()


def test_a_long_key_is_cut_as_a_long_value_is() -> None:
    assert str(Problem("k" * 300, "v" * 200, "no")) == f"{'k' * 60}… (300 characters) = {'v' * 60}… (200 characters): no."


@pytest.mark.parametrize(("fix", "end"), [("did you mean x?", "x?"), ("mend it.", "it."), ("mend it", "it.")])
def test_a_sentence_has_one_end(fix: str, end: str) -> None:
    assert str(Problem("a", "b", "no", fix)).endswith(end)


def test_a_password_in_an_address_is_not_shown() -> None:
    said = str(Problem("s3", "http://me:secret@host/x", "bad: https://you:p%40ss@there", "drop http://me:secret@host"))
    assert "secret" not in said
    assert "p%40ss" not in said
    assert "http://***@host/x" in said


def test_wrong_fields_hide_no_other_problem() -> None:
    text = (
        REFERENCE.replace("count: 3", 'count: "3"')
        .replace("capacity_gib: 4800", "capacity_gib: 1300")
        .replace("[usw2-az2, usw2-az1]", "[use1-az2, use1-az1]")
    )
    text = text.replace("removal: retain", "removal: retian")
    with pytest.raises(Refused) as refused:
        parse(text)
    fields = [problem.field for problem in refused.value.problems]
    assert {"instance_groups[2].count", "storage.removal", "storage.file_system.capacity_gib"} <= set(fields)
    assert {"network.availability_zone_ids[0]", "network.availability_zone_ids[1]"} <= set(fields)
    assert len(fields) == len(set(fields))


@pytest.mark.parametrize(
    ("region", "zone"),
    [("us-east-1", "use1"), ("eu-central-1", "euc1"), ("ap-northeast-1", "apne1"), ("ap-southeast-2", "apse2"), ("us-gov-west-1", "usgw1")],
)
def test_zones_are_of_the_region(region: str, zone: str) -> None:
    text = REFERENCE.replace("region: us-west-2", f"region: {region}")
    assert any(f"begin with {zone}-az" in line for line in refused(text))
    assert not any("no zone of" in line for line in _lines(text.replace("usw2-", f"{zone}-")))


def _lines(text: str) -> list[str]:
    try:
        parse(text)
    except Refused as caught:
        return [str(problem) for problem in caught.problems]
    return []


def test_nothing_is_said_of_a_field_that_cannot_be_read() -> None:
    with pytest.raises(Refused) as refused:
        parse(REFERENCE.replace("role: workers", "role: worker").replace("capacity_gib: 4800", "capacity_gib: lots"))
    assert [problem.field for problem in refused.value.problems] == ["instance_groups[2].role", "storage.file_system.capacity_gib"]
