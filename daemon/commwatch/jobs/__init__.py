"""What is read from NCCL jobs of users: their logs and their settings."""
