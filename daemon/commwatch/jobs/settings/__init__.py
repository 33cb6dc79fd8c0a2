"""NCCL settings of processes judged against the node that they run on; pure."""

from commwatch.jobs.settings.conf_file import ConfFile, effective_settings, parse_conf_file
from commwatch.jobs.settings.facts import (
    CODES,
    SEVERITIES,
    Job,
    NodeFacts,
    Origin,
    ProcessSettings,
    RdmaPort,
    RemarkCode,
    Setting,
    SettingRemark,
    SettingSeverity,
)
from commwatch.jobs.settings.judge import joined_remarks, judge_process, judge_settings
from commwatch.jobs.settings.names import kept_name, secret_name
from commwatch.jobs.settings.published import remark_counts
from commwatch.jobs.settings.ranks import judge_ranks
from commwatch.jobs.settings.variables import KnownVariables, Variable, public_name

__all__ = [
    "CODES",
    "SEVERITIES",
    "ConfFile",
    "Job",
    "KnownVariables",
    "NodeFacts",
    "Origin",
    "ProcessSettings",
    "RdmaPort",
    "RemarkCode",
    "Setting",
    "SettingRemark",
    "SettingSeverity",
    "Variable",
    "effective_settings",
    "joined_remarks",
    "judge_process",
    "judge_ranks",
    "judge_settings",
    "kept_name",
    "parse_conf_file",
    "public_name",
    "remark_counts",
    "secret_name",
]
