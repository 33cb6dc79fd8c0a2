"""NCCL logs of jobs: where they are, how they are followed, what their lines mean."""
