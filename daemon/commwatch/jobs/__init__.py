"""Reads NCCL jobs of users: their logs and their settings."""
