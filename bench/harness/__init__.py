"""Shared by all figures: processes, floors, load, statistics, report and plots."""
