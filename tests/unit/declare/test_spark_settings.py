"""Where Spark jobs run: what is refused before a job starts, and what is said about it."""

from pathlib import Path

import pytest

from tocsin.declare.blocks.spark_settings import LATENCIES, ResourceSettings, SparkSettings
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import RunnerSettings
from tocsin.declare.settings import Settings, load_settings


def faults_of(folder: Path, spark: str) -> list[str]:
    (folder / "tocsin.toml").write_text(f"[spark]\n{spark}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(folder)
    return [f"{fault.key}: {fault.what} ({fault.nearest})" for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("spark", "told"),
    [
        ('master = "spark:/one:7077"', "spark.master: must be local, spark://host:port, yarn or k8s://"),
        ('master = "spark://one:port"', "spark.master: must be local, spark://host:port, yarn or k8s://"),
        ('master = "local[4]"', "spark.master: must be local, spark://host:port, yarn or k8s://"),
        ("resources = { executor = 1 }", "spark.resources.executor: is not a setting (executors)"),
        ("resources = { cores = 0 }", "spark.resources.cores: must be greater than or equal to 1, not 0"),
        (
            'resources = { memory = "2" }',
            "spark.resources.memory: must be a size such as '900 MB' or '1.5 GB', not '2'",
        ),
        ('resources = { memory = "9 MB" }', "spark.resources.memory: must be greater than or equal to 512000000"),
        ('conf = { "authenticate" = "true" }', "spark.conf: names 'authenticate'; every option of Spark begins with"),
        ('conf = { "spark.authenticate.secret" = "x" }', "spark.conf: names 'spark.authenticate.secret', which looks"),
        ('conf = { "spark.hadoop.fs.s3a.ACCESS.KEY" = "x" }', "spark.conf: names 'spark.hadoop.fs.s3a.ACCESS.KEY'"),
        ('conf = { "spark.ssl.keyPassword" = "x" }', "spark.conf: names 'spark.ssl.keyPassword', which looks"),
        (
            'master = "yarn"',
            "None: spark.master = 'yarn' also needs spark.driver_host: executors elsewhere cannot reach 127.0.0.1",
        ),
        ('master = "spark://one:7077,127.0.0.1:7077"', "None: spark.master = 'spark://one:7077,127.0.0.1:7077' also"),
        ('master = "k8s://https://127.0.0.1:1"', "None: spark.master = 'k8s://https://127.0.0.1:1' also needs spark.d"),
        (
            'master = "k8s://https://api"\ndriver_host = "jobs"',
            "None: spark.master = 'k8s://https://api' also needs the image of the executors,"
            " 'spark.kubernetes.container.image' in spark.conf",
        ),
    ],
)
def test_a_place_that_cannot_be_is_a_fault(tmp_path: Path, spark: str, told: str) -> None:
    (fault,) = faults_of(tmp_path, spark)
    assert fault.startswith(told)


def test_files_of_secrets_and_names_of_kubernetes_are_no_secrets() -> None:
    keys = ("spark.authenticate.secret.file", "spark.kubernetes.executor.secrets.kafka", "spark.authenticate")
    SparkSettings(conf=dict.fromkeys(keys, "/x"))


def test_a_cluster_is_its_masters_and_what_each_job_gets(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text(
        '[spark]\nmaster = "spark://one:7077,two:7078"\ndriver_host = "jobs"\n[spark.resources]\nmemory = "2 GB"\n'
    )
    spark = load_settings(tmp_path).spark
    assert spark.masters == [("one", 7077), ("two", 7078)]
    assert spark.resources == ResourceSettings(executors=2, cores=4, memory=2_000_000_000)
    assert (spark.resources.slots, SparkSettings().masters) == (8, [])
    assert spark.model_copy(update={"master": "spark://one"}).masters == [], "Spark itself says what is wrong with it"


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("k8s://https://api:6443", ("api", 6443)),
        ("k8s://https://api/k8s/clusters/a", ("api", 443)),
        ("k8s://api:6443", ("api", 6443)),
        ("k8s://http://127.0.0.1:8001", ("127.0.0.1", 8001)),
    ],
)
def test_jobs_that_are_pods_need_no_more_than_the_address_of_the_api(master: str, address: tuple[str, int]) -> None:
    spark = SparkSettings(master=master)
    assert Settings(spark=spark, runner=RunnerSettings(kind="kubernetes", image="shop:1")).spark.masters == [address]


@pytest.mark.parametrize(
    ("own", "others", "waits"), [("100 ms", "100 ms", 0), ("1 s", "100 ms", 500), ("10 ms", "1 s", 0)]
)
def test_records_gather_once_where_their_producers_let_them(own: str, others: str, waits: int) -> None:
    """A job with another latency than the installation may still want more of them at once."""
    reader, made = LATENCIES[own], LATENCIES[others]
    gathered = int(made.producer(are_events=True)["kafka.linger.ms"])
    assert int(reader.consumer(gathered).get("kafka.fetch.max.wait.ms", 0)) == waits
    assert int(reader.consumer(0).get("kafka.fetch.max.wait.ms", 0)) == reader.fetch
