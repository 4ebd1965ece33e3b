"""Derivative datasets: the planner of steps, the engine that computes them, its protocol and sandbox."""
