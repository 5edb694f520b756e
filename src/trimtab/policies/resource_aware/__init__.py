"""Policies that weigh a request's demand of several resources against the nodes' capacity."""
