"""Policies that solve an optimisation problem every period and follow its solution."""
