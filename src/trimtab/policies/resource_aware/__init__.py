"""Policies that weigh what a request takes of several resources against what nodes have of them."""
