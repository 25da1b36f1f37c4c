"""The output of the commands: tables, progress, boards, errors."""
