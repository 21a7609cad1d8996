"""FSx for Lustre: space, throughput and operations of the file system that holds every run."""

from __future__ import annotations

from stacks.dashboards.panel import Board, FileSystemQuery, Panel, Row, Variable

BOARD = Board(
    uid="hyperpod-rl-file-system",
    title="File system",
    description="FSx for Lustre as CloudWatch sees it. A full file system ends a run at its next checkpoint.",
    variables=(
        Variable("file_system", "File system", "dimension_values(default, AWS/FSx, FreeDataStorageCapacity, FileSystemId)",
                 cloudwatch=True, multiple=False),
    ),
    rows=(
        Row("Space", (
            Panel("Free", (FileSystemQuery("FreeDataStorageCapacity"),), "bytes", width=12),
            Panel("Used", (FileSystemQuery("StorageCapacityUtilization", "Average"),), "percent", width=12, maximum=100, red_above=85),
        )),
        Row("Throughput", (
            Panel("Read", (FileSystemQuery("DataReadBytes"),), "bytes", description="Bytes in each period."),
            Panel("Written", (FileSystemQuery("DataWriteBytes"),), "bytes", description="Bytes in each period."),
            Panel("Network in use", (FileSystemQuery("NetworkThroughputUtilization", "Average"),), "percent", maximum=100, red_above=90),
            Panel("Disks in use", (FileSystemQuery("FileServerDiskThroughputUtilization", "Average"),), "percent", maximum=100,
                  red_above=90),
            Panel("Reads and writes", (FileSystemQuery("DataReadOperations"), FileSystemQuery("DataWriteOperations"))),
            Panel("Metadata operations", (FileSystemQuery("MetadataOperations"),)),
        )),
    ),
)  # fmt: skip
