"""What all figures share: processes, floors, load, statistics, report and plots."""
