"""The services that ministack lacks, a file each; `local.cloud.dispatch` chooses."""
