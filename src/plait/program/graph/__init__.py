"""State graphs: visit nodes, assign to the state, follow edges. Read `graph_step` first."""
