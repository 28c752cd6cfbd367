"""Measure speed on a GPU: `normlab bench`.

`commands` makes the records of `norm`, `family`, `ladder`, `product` and `host`; `tables`, `report` and `plots` show
them. `records/` holds what was measured, and what the simulator was held against: JSON files with date, machine,
versions and the command that made them.
"""
