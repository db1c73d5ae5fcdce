"""Diagrams of flows as lines, Mermaid text and SVG. Read `model` first."""
