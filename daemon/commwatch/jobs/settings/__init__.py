"""NCCL settings of processes judged against the node that they run on; pure."""

from commwatch.jobs.settings.conf_file import ConfFile, effective_settings, parse_conf_file
from commwatch.jobs.settings.facts import Job, NodeFacts, Origin, ProcessSettings, RdmaPort, Setting
from commwatch.jobs.settings.judge import joined_remarks, judge_process, judge_settings, remark_counts
from commwatch.jobs.settings.names import kept_name, secret_name
from commwatch.jobs.settings.ranks import judge_ranks
from commwatch.jobs.settings.records import CODES, SEVERITIES, RemarkCode, SettingRemark, SettingSeverity
from commwatch.jobs.settings.variables import KnownVariables, Variable, known_variables, public_name

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
    "known_variables",
    "parse_conf_file",
    "public_name",
    "remark_counts",
    "secret_name",
]
