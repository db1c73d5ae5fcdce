"""Ensembles: tasks, loops, maps and a manager. Read `model`, then `task_graph`."""
